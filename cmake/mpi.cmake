# have_mpi: libreshard_mpi is built, of host/comm/mpi/*.c, and links MPI. With sanitizers it is for tests/mpi alone, which
# leave out what is MPI's own.
set(have_mpi OFF)
if(NOT RESHARD_MPI STREQUAL "OFF" AND NOT RESHARD_FUZZ)
  find_package(MPI QUIET COMPONENTS C)
  set(have_mpi ${MPI_C_FOUND})
endif()
if(RESHARD_MPI STREQUAL "ON" AND NOT have_mpi AND NOT RESHARD_FUZZ)
  message(FATAL_ERROR "RESHARD_MPI is ON and no MPI was found (MPI_HOME)")
endif()
message(STATUS "MPI: ${MPI_C_LIBRARIES}")
