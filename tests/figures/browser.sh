#!/usr/bin/env bash
# The page that page.sh has drawn, in a headless browser: phone and desktop width, dark and light.
# usage: browser.sh PAGE
set -euo pipefail
page=${1:?usage: browser.sh PAGE}
export PYTHONDONTWRITEBYTECODE=1
look=$SOURCE/profiles/report/look.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
command -v python3 >/dev/null || { echo "browser: skipped, there is no python3"; exit 77; }
python3 "$look" "$page" # 77: there is no browser

# The check itself: what is wrong is found.
sed -e 's/<text [^>]*>size of the tensor<\/text>/&&/' -e 's/<h1>/<h1 style="width:2000px">/' \
  -e 's/<text x="[0-9.]*"\([^>]*\)>element width/<text x="-9"\1>element width/' \
  -e 's/--second:#[0-9a-f]*/--second:#c0c0c0/' -e 's/@media(prefers-color-scheme:dark)/@media(max-width:1px)/' \
  "$page" >spoilt.html
if python3 "$look" spoilt.html >said; then echo "browser: no fault is seen in a page that is spoilt" >&2; exit 1; fi
for fault in 'overlap: "size of the tensor"' 'wider than its window' 'cut: "element width' 'faint: "packed"' \
  'the same ground'; do
  grep -q "$fault" said || { echo "browser: not seen: $fault: $(cat said)" >&2; exit 1; }
done
