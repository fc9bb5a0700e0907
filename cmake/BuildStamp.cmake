# cmake -DSOURCE=dir -DSTAMP=file -P BuildStamp.cmake: writes the checkout's revision and state, touching the file
# only when they changed.
execute_process(COMMAND git -C ${SOURCE} rev-parse HEAD
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
set(dirty 0)
if(failed)
  set(revision unknown)
else()
  execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    set(dirty 1)
  endif()
endif()
set(text "#define RLK_REVISION \"${revision}\"\n#define RLK_DIRTY ${dirty}\n")
set(old "")
if(EXISTS ${STAMP})
  file(READ ${STAMP} old)
endif()
if(NOT text STREQUAL old)
  file(WRITE ${STAMP} "${text}")
endif()
