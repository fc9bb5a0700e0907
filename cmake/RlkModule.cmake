# How every part of rlk is compiled: one static library per folder, the same flags everywhere but for -O.
#
# Floating point: no contraction and no fast-math, since the bits of every strict op are the product
# (docs/numerics.md, R2). x86-64-v3 fixes the instruction set, so a binary gives the same bits on
# every machine that runs it.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(RLK_NUMERIC_FLAGS -march=x86-64-v3 -ffp-contract=off)  # these go into every manifest
set(RLK_CUDA_NUMERIC_FLAGS --fmad=false)  # a multiply and an add fuse only where the source says fmaf

add_library(rlk_flags INTERFACE)
target_include_directories(rlk_flags INTERFACE ${CMAKE_SOURCE_DIR}/include)
target_compile_options(rlk_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-missing-field-initializers;-Werror;${RLK_NUMERIC_FLAGS}>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # false positives in "x" + std::string (GCC bug 105651)
  target_compile_options(rlk_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  # No garbage collection in the compiler below this many KiB: a file takes a third more memory and a tenth less time.
  target_compile_options(rlk_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()
target_compile_options(rlk_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:${RLK_CUDA_NUMERIC_FLAGS};--expt-relaxed-constexpr;-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-march=x86-64-v3,-ffp-contract=off>")
target_compile_definitions(rlk_flags INTERFACE $<$<BOOL:${RLK_CUDA}>:RLK_CUDA>)
if(RLK_SANITIZE)
  target_compile_options(rlk_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RLK_SANITIZE} -fno-omit-frame-pointer -g>)
  target_link_options(rlk_flags INTERFACE -fsanitize=${RLK_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # false positives in std::function beside the sanitizers' checks (GCC bug 105562)
    target_compile_options(rlk_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  endif()
endif()
if(RLK_FUZZ)
  target_compile_options(rlk_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# What computes is compiled for its own speed, the rest and the tests for the compiler's: -O1 takes a quarter less time than -O3.
# No bit depends on it, since nothing here may reassociate.
set(RLK_COMPUTES base data device comm model rollout train)

# rlk_precompile(<target> <kind> <library> <header>...): the library's headers, compiled once for all targets of a kind. GCC forgets
# the pragmas in precompiled headers, so what <string> silences for itself is seen where strings are added and inlined: often at -O3,
# which does without. So does the fuzz preset, so that CI finds what a source should include.
function(rlk_precompile target kind library)
  set(owner rlk_${kind}_headers)
  if(NOT TARGET ${owner})
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${owner}.cpp CONTENT "")
    add_library(${owner} OBJECT ${CMAKE_BINARY_DIR}/${owner}.cpp)
    target_link_libraries(${owner} PRIVATE rlk_flags ${library})
    target_compile_options(${owner} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-O1>)
    target_precompile_headers(${owner} PRIVATE ${ARGN})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${owner})
endfunction()

# rlk_module(<folder> [DEPS target...]): every .cpp of the current folder as the library rlk_<folder>. Sources under a cuda/
# folder belong to the CUDA backend.
function(rlk_module name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(NOT RLK_CUDA)
    list(FILTER sources EXCLUDE REGEX "/cuda/")
  endif()
  if(NOT sources)  # headers alone
    add_library(rlk_${name} INTERFACE)
    target_link_libraries(rlk_${name} INTERFACE rlk_flags ${ARG_DEPS})
    return()
  endif()
  add_library(rlk_${name} STATIC ${sources})
  target_link_libraries(rlk_${name} PUBLIC rlk_flags ${ARG_DEPS})
  if(NOT name IN_LIST RLK_COMPUTES)
    target_compile_options(rlk_${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-O1>)
    rlk_precompile(rlk_${name} module nlohmann_json::nlohmann_json <nlohmann/json.hpp>)
  endif()
endfunction()

# rlk_test(<name> SOURCES file... [DEPS target...] [TIMEOUT s]): one GoogleTest program, one ctest entry.
function(rlk_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE rlk_flags ${ARG_DEPS} GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE RLK_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-O1>)
  rlk_precompile(${name} test GTest::gtest <gtest/gtest.h> <nlohmann/json.hpp>)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
