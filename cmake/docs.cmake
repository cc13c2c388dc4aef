# Target docs_headers, where Doxygen is found: a page a public header, in build/docs/headers, from the headers' comments
# as they are (comments.sed makes Doxygen's of them). Target docs is all documentation; nothing builds it by itself.
find_program(RESHARD_DOXYGEN doxygen)
mark_as_advanced(RESHARD_DOXYGEN)
if(NOT TARGET docs)
  add_custom_target(docs)
endif()
if(RESHARD_DOXYGEN)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/docs/Doxyfile @ONLY CONTENT [=[
PROJECT_NAME           = reshard
PROJECT_NUMBER         = @PROJECT_VERSION@
PROJECT_BRIEF          = "@PROJECT_DESCRIPTION@"
INPUT                  = "@PROJECT_SOURCE_DIR@/include/reshard"
FILE_PATTERNS          = *.h
STRIP_FROM_PATH        = "@PROJECT_SOURCE_DIR@/include"
STRIP_FROM_INC_PATH    = "@PROJECT_SOURCE_DIR@/include"
INPUT_FILTER           = "sed -f '@PROJECT_SOURCE_DIR@/cmake/comments.sed'"
OUTPUT_DIRECTORY       = "@PROJECT_BINARY_DIR@/docs"
HTML_OUTPUT            = headers
GENERATE_LATEX         = NO
OPTIMIZE_OUTPUT_FOR_C  = YES
JAVADOC_AUTOBRIEF      = YES
EXTRACT_ALL            = YES
TYPEDEF_HIDES_STRUCT   = YES
INLINE_SIMPLE_STRUCTS  = YES
SORT_MEMBER_DOCS       = NO
VERBATIM_HEADERS       = NO
HAVE_DOT               = NO
MACRO_EXPANSION        = YES
EXPAND_ONLY_PREDEF     = YES
PREDEFINED             = RESHARD_API=
EXCLUDE_SYMBOLS        = RESHARD_*_H RESHARD_API
MAX_INITIALIZER_LINES  = 8
QUIET                  = YES
WARN_IF_UNDOCUMENTED   = NO
]=])
  add_custom_target(docs_headers COMMAND ${RESHARD_DOXYGEN} ${PROJECT_BINARY_DIR}/docs/Doxyfile
    COMMENT "Pages of the public headers: docs/headers/index.html" VERBATIM)
  add_dependencies(docs docs_headers)
endif()
