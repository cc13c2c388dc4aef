# CUDA and NCCL: the headers, libraries and flags of the library's CUDA parts.
#
#   have_cuda          headers of the CUDA runtime: host/device/cuda/*.c are compiled (reshard_cuda_objects)
#   have_cuda_kernels  nvcc too: kernels/*.cu are compiled, and the library has a CUDA device
#   have_nccl          nccl.h and libnccl under one root: host/comm/nccl/*.c are compiled, and the library links it
#
# The sanitizers do not know nvcc's code: such builds compile the host's part, for the virtual GPU of the tests, and
# their library is one without CUDA. The runtime is linked statically: the library loads where there is neither a
# driver nor libcudart. libnccl is linked as any library. Where it may be missing at run time: RESHARD_NCCL=OFF.
set(have_cuda OFF)
set(have_cuda_kernels OFF)
set(have_nccl OFF)
if(RESHARD_CUDA STREQUAL "OFF")
  if(RESHARD_NCCL STREQUAL "ON")
    message(FATAL_ERROR "RESHARD_NCCL is ON, and it needs CUDA, which RESHARD_CUDA=OFF leaves out")
  endif()
  message(STATUS "CUDA: none, as asked for")
  return()
endif()

find_package(CUDAToolkit 12.0 QUIET)
if(CUDAToolkit_FOUND AND EXISTS ${CUDAToolkit_INCLUDE_DIRS}/cuda_runtime_api.h)
  set(have_cuda ON)
endif()
if(have_cuda AND NOT instrument)
  if(CUDAToolkit_NVCC_EXECUTABLE AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Code of its own for A100, H100 and B200. Later GPUs compile the PTX of the newest one. In the cache, where a
    # project that has this one in it and enables CUDA later finds them. Its own, set before, are kept.
    set(architectures 80-real 90-real 100)
    if(CUDAToolkit_VERSION VERSION_LESS 12.8)
      set(architectures 80-real 90)
    endif()
    set(CMAKE_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "GPUs that kernels are compiled for")
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cudart_static)
    if(PROJECT_IS_TOP_LEVEL)
      set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo" CACHE STRING "flags of a Release build")
    endif()
    enable_language(CUDA)
    set(have_cuda_kernels ON)
    if(RESHARD_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${RESHARD_CCACHE})
    endif()
  endif()
endif()
if(RESHARD_CUDA STREQUAL "ON" AND NOT have_cuda)
  message(FATAL_ERROR "RESHARD_CUDA is ON and no CUDA toolkit of version 12.0 or later was found (CUDAToolkit_ROOT)")
elseif(RESHARD_CUDA STREQUAL "ON" AND NOT have_cuda_kernels AND NOT instrument)
  message(FATAL_ERROR "RESHARD_CUDA is ON and nvcc, its host compiler or libcudart_static.a was not found")
endif()

# The header and the library of one root, so that they are of one version. A Python environment has no libnccl.so, only
# libnccl.so.2.
if(have_cuda AND NOT RESHARD_NCCL STREQUAL "OFF")
  set(roots ${NCCL_HOME} $ENV{NCCL_HOME} ${CUDAToolkit_TARGET_DIR} ${CUDAToolkit_LIBRARY_ROOT} /usr/local/cuda
    /usr/local /usr)
  find_program(RESHARD_PYTHON NAMES python3 HINTS $ENV{VIRTUAL_ENV}/bin)
  mark_as_advanced(RESHARD_PYTHON)
  if(RESHARD_PYTHON)
    execute_process(COMMAND ${RESHARD_PYTHON} -c "import nvidia.nccl as n; print(list(n.__path__)[0])"
      OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND roots ${root})
  endif()
  foreach(root IN LISTS roots)
    find_path(NCCL_INCLUDE_DIR nccl.h PATHS ${root}/include NO_DEFAULT_PATH)
    find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 PATHS ${root}
      PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE} NO_DEFAULT_PATH)
    if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
      set(have_nccl ON)
      break()
    endif()
    unset(NCCL_INCLUDE_DIR CACHE)
    unset(NCCL_LIBRARY CACHE)
  endforeach()
  mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
endif()
if(RESHARD_NCCL STREQUAL "ON" AND NOT have_nccl)
  message(FATAL_ERROR "RESHARD_NCCL is ON and nccl.h with libnccl was not found (NCCL_HOME)")
endif()

if(have_cuda_kernels)
  set(said "kernels for ${CMAKE_CUDA_ARCHITECTURES}")
  string(REPLACE ";" ", " said "${said}")
elseif(have_cuda)
  set(said "its headers, for tests")
else()
  set(said "none")
endif()
message(STATUS "CUDA: ${said}; NCCL: ${NCCL_LIBRARY}")
