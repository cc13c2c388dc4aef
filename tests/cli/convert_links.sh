#!/usr/bin/env bash
# convert --force: modes of what it writes, and symbolic links that others have put in its way.
. "$(dirname "$0")/common.bash"
. "$SOURCE/tests/cli/files.bash"
{ npy '<f4' False '(13, 21)'; bytes 1092 5000; } >c.npy

# --- modes ----------------------------------------------------------------------------------------------------------
mode() { # MODE PATH...
  local path
  for path in "${@:2}"; do
    checks=$((checks + 1))
    [ "$(stat -c %a "$path")" = "$1" ] || fault "$path has mode $(stat -c %a "$path"), expected $1"
  done
}
umask 027
for row in '644 640 750' '600 600 700' '640 640 750' '444 640 750' '666 640 750' '604 600 700'; do
  set -- $row
  chmod "$1" c.npy; rm -rf new.npy new
  expect 0 convert c.npy new.npy; mode "$2" new.npy
  expect 0 convert c.npy new --dst 'chunk(0)' --ranks 2; mode "$2" new/*; mode "$3" new
  expect 0 convert new again.npy --force
done
# A directory that others may not search keeps its files from them, and so does what is made of it.
chmod 644 new/*; chmod 700 new; rm -f joined.npy; expect 0 convert new joined.npy; mode 600 joined.npy
rm -rf cut; expect 0 convert new cut --dst 'chunk(1)'; mode 600 cut/*; mode 700 cut
# The file that is replaced says the modes, and the umask takes nothing from them.
for mode in 600 644 664 666; do
  chmod $mode joined.npy; chmod 644 c.npy
  expect 0 convert c.npy joined.npy --force; mode $mode joined.npy
  chmod $mode cut/*; chmod 7${mode:1} cut
  expect 0 convert c.npy cut --dst 'flat()' --ranks 3 --force; mode $mode cut/*; mode 7${mode:1} cut
done
follows() { # OUT: a link
  run convert c.npy "$1" --force
  [ "$status" = 0 ] || fault "$1: $(cat err)"
}
ln -s joined.npy link.npy; follows link.npy; mode 666 joined.npy

# --- links of others ------------------------------------------------------------------------------------------------
mkdir sticky plain; chmod 1777 sticky; chmod 777 plain; echo victim >victim.npy
mkdir victims; touch victims/a.json
ln -s ../victim.npy sticky/own.npy; ln -s ../victims sticky/own
follows sticky/own.npy
if [ "$(id -u)" != 0 ]; then
  [ "$failures" = 0 ] || finish
  echo 'skipped: links of another user need root to be made'
  exit 77
fi
echo victim >victim.npy
stranger() { ln -s "$1" "$2" && chown -h 65534 "$2"; } # TARGET LINK
stranger ../victim.npy sticky/theirs.npy; stranger ../victims sticky/theirs; stranger ../victim.npy plain/theirs.npy
ln -s sticky/theirs.npy chain.npy; stranger ../missing.npy sticky/nowhere.npy
for out in sticky/theirs.npy chain.npy sticky/../sticky/theirs.npy "$PWD/sticky/theirs.npy" sticky/nowhere.npy; do
  bad 1 "is not followed: '.*' is a symbolic link of user 65534 in a sticky directory" convert c.npy "$out" --force
done
# Nor is one on the way, with --force or without.
mkdir sticky/deep; stranger ../victims sticky/way; stranger ../../victims sticky/deep/way; ln -s sticky/way way
for out in sticky/way/new.npy way/new.npy sticky/deep/../way/new.npy "$PWD/sticky/way/../victims/new.npy"; do
  bad 1 "is not followed: '.*way' is a symbolic link of user 65534 in a sticky directory" convert c.npy "$out"
  bad 1 "is not followed" convert c.npy "$out" --force
done
bad 1 "is not followed" convert c.npy sticky/way/new --dst 'chunk(0)' --ranks 2
run convert c.npy sticky/deep/way/new.npy # where no sticky bit says that users differ
[ "$status" = 0 ] || fault "a link in a plain directory: $(cat err)"
rm victims/new.npy; ls -A victims | grep -qvx a.json && fault "written to victims: $(ls -A victims)"
for out in sticky/theirs sticky/theirs/; do
  bad 1 "is not followed" convert c.npy "$out" --dst 'chunk(0)' --ranks 2 --force
done
[ "$(cat victim.npy)" = victim ] && [ -e victims/a.json ] || fault 'a link of another user was followed'
for link in theirs.npy theirs; do [ -L "sticky/$link" ] || fault "sticky/$link is gone"; done
# The directory's owner may put links there, as may anybody where no sticky bit says that users differ.
chown 65534 sticky; follows sticky/theirs.npy; follows plain/theirs.npy
same c.npy victim.npy
finish
