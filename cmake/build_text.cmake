# Writes the header with RS_BUILD: the version, and a hash of all sources and settings, which says if two libraries are of
# one build.
# usage: cmake -DSOURCE=DIR -DVERSION=TEXT -DSETTINGS=TEXT -DOUT=FILE -P build_text.cmake
file(GLOB_RECURSE files RELATIVE ${SOURCE} ${SOURCE}/include/*.h ${SOURCE}/host/*.[ch] ${SOURCE}/kernels/*)
list(SORT files)
set(all "${SETTINGS}")
foreach(file IN LISTS files)
  file(SHA256 ${SOURCE}/${file} hash)
  string(APPEND all "\n${file} ${hash}")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 12 hash)
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define RS_BUILD \"${VERSION}, build ${hash}\"\n")
