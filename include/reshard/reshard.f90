! The core path of reshard for Fortran 2008: layouts, plans, transfers, and communicators over MPI and over processes of
! one node. A program compiles this file with its own, and links libreshard (and libreshard_mpi for MPI).
!
! Names, arguments and errors are those of the C headers, which are the manual. Handles and addresses are type(c_ptr),
! sizes and ranks c_int64_t. A variable of a type with `size` begins with the defaults. Texts end with c_null_char:
!
!     status = reshard_layout_parse("chunk(0)"//c_null_char, 2_c_int, shape, world, rows)
!     if (status /= RESHARD_SUCCESS) print *, reshard_error_text()
!
! A tensor of reshard is row-major: dim 0 is the slowest. An array A(m, n) of Fortran is a tensor of shape [m, n] with
! strides [1, m], in elements (reshard_arrays), or one of shape [n, m] without strides.
module reshard
  use, intrinsic :: iso_c_binding
  implicit none
  private :: c_strlen

  enum, bind(C) ! reshard_status
    enumerator :: RESHARD_SUCCESS = 0, RESHARD_ERROR_INVALID = 1, RESHARD_ERROR_UNSUPPORTED = 2
    enumerator :: RESHARD_ERROR_OUT_OF_MEMORY = 3, RESHARD_ERROR_SYSTEM = 4, RESHARD_ERROR_MISMATCH = 5
    enumerator :: RESHARD_ERROR_PEER = 6, RESHARD_ERROR_BUSY = 7, RESHARD_ERROR_TIMEOUT = 8, RESHARD_ERROR_INTERNAL = 9
    enumerator :: RESHARD_ERROR_CANCELLED = 10, RESHARD_ERROR_CORRUPT = 11
  end enum

  enum, bind(C) ! reshard_dtype
    enumerator :: RESHARD_DTYPE_NONE = 0, RESHARD_BOOL = 1, RESHARD_U8 = 2, RESHARD_I8 = 3, RESHARD_U16 = 4
    enumerator :: RESHARD_I16 = 5, RESHARD_U32 = 6, RESHARD_I32 = 7, RESHARD_U64 = 8, RESHARD_I64 = 9
    enumerator :: RESHARD_F8_E4M3 = 10, RESHARD_F8_E5M2 = 11, RESHARD_F8_E8M0 = 12, RESHARD_F16 = 13
    enumerator :: RESHARD_BF16 = 14, RESHARD_F32 = 15, RESHARD_F64 = 16, RESHARD_C64 = 17, RESHARD_C128 = 18
  end enum

  enum, bind(C) ! reshard_op
    enumerator :: RESHARD_OP_COPY = 0, RESHARD_OP_SUM = 1, RESHARD_OP_AVG = 2, RESHARD_OP_MIN = 3, RESHARD_OP_MAX = 4
    enumerator :: RESHARD_OP_PROD = 5
  end enum

  enum, bind(C) ! reshard_path
    enumerator :: RESHARD_PATH_AUTO = 0, RESHARD_PATH_DIRECT = 1, RESHARD_PATH_PACKED = 2, RESHARD_PATH_MIXED = 3
  end enum

  enum, bind(C) ! reshard_collective_use
    enumerator :: RESHARD_COLLECTIVE_USE_AUTO = 0, RESHARD_COLLECTIVE_USE_FORCE = 1, RESHARD_COLLECTIVE_USE_FORBID = 2
  end enum

  integer(c_int64_t), parameter :: RESHARD_DEFAULT_LIMIT = 0, RESHARD_NO_LIMIT = -1

  type, bind(C) :: reshard_entry
    integer(c_size_t) :: size = 104
    type(c_ptr) :: src = c_null_ptr
    type(c_ptr) :: dst = c_null_ptr
    integer(c_int) :: dtype = RESHARD_DTYPE_NONE
    integer(c_int) :: dst_dtype = RESHARD_DTYPE_NONE
    integer(c_int) :: op = RESHARD_OP_COPY
    type(c_ptr) :: src_offset = c_null_ptr
    type(c_ptr) :: src_extent = c_null_ptr
    type(c_ptr) :: dst_offset = c_null_ptr
    type(c_ptr) :: dst_extent = c_null_ptr
    type(c_ptr) :: permutation = c_null_ptr
    type(c_ptr) :: name = c_null_ptr
    type(c_ptr) :: block = c_null_ptr
    integer(c_int) :: scale_dtype = RESHARD_DTYPE_NONE
  end type

  type, bind(C) :: reshard_plan_options
    integer(c_size_t) :: size = 40
    integer(c_int64_t) :: workspace_limit = RESHARD_DEFAULT_LIMIT
    type(c_ptr) :: nodes = c_null_ptr
    integer(c_int) :: on_cpu = 0
    type(c_ptr) :: topology = c_null_ptr
  end type

  type, bind(C) :: reshard_plan_info
    integer(c_int64_t) :: rank, world, entries
    integer(c_int64_t) :: bytes, sent_bytes, received_bytes, self_copy_bytes
    integer(c_int64_t) :: peers, messages_sent, messages_received, rounds, workspace_bytes
    integer(c_int64_t) :: packs_skipped, unpacks_skipped, stages, segments, memory_bytes, classes
    integer(c_int64_t) :: lower_bound_bytes, plan_ns, exclusive_bytes, workspace_limit, staged_bytes, least_rounds
    integer(c_int64_t) :: domains, domain
    integer(c_int64_t) :: between_sent_bytes, between_received_bytes, within_sent_bytes, within_received_bytes
    integer(c_int64_t) :: leaving_bytes, leaving_least_bytes, entering_least_bytes, source_bytes
    integer(c_int64_t) :: chains, hops, later_rounds, streams
  end type

  type, bind(C) :: reshard_arrays
    integer(c_size_t) :: size = 56
    type(c_ptr) :: src = c_null_ptr
    type(c_ptr) :: dst = c_null_ptr
    type(c_ptr) :: src_strides = c_null_ptr
    type(c_ptr) :: dst_strides = c_null_ptr
    integer(c_int64_t) :: nsrc = 0
    integer(c_int64_t) :: ndst = 0
  end type

  type, bind(C) :: reshard_transfer_options
    integer(c_size_t) :: size = 40
    integer(c_int) :: path = RESHARD_PATH_AUTO
    type(c_ptr) :: workspace = c_null_ptr
    integer(c_size_t) :: workspace_bytes = 0
    integer(c_int) :: collective = RESHARD_COLLECTIVE_USE_AUTO
  end type

  type, bind(C) :: reshard_transfer_info
    integer(c_int) :: path
    integer(c_size_t) :: workspace_bytes
    integer(c_int64_t) :: copies, rounds, packs_skipped, unpacks_skipped
    integer(c_int) :: collective
    type(c_ptr) :: collective_why
    integer(c_int64_t) :: workspace_limit, least_rounds, streams, later_rounds
  end type

  type, bind(C) :: reshard_comm_stats
    integer(c_int64_t) :: received_bytes, received_messages, between_bytes, within_bytes, leaving_bytes
  end type

  type, bind(C) :: reshard_node_options
    integer(c_size_t) :: size = 32
    type(c_ptr) :: device = c_null_ptr
    integer(c_int64_t) :: timeout_ms = 0
    type(c_ptr) :: job = c_null_ptr
  end type

  type, bind(C) :: reshard_rendezvous
    integer(c_size_t) :: size = 824
    integer(c_int64_t) :: n = 0, rank = 0, local_n = 0, local_rank = 0, timeout_ms = 0
    integer(c_int) :: port = 0
    character(kind=c_char) :: address(256) = c_null_char
    character(kind=c_char) :: job(256) = c_null_char
    character(kind=c_char) :: secret(256) = c_null_char
  end type

  interface
    ! --- Errors ---------------------------------------------------------------------------------------------------
    function reshard_last_error() bind(C) result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function reshard_status_string(status) bind(C) result(text)
      import :: c_ptr, c_int
      integer(c_int), value :: status
      type(c_ptr) :: text
    end function
    function c_strlen(text) bind(C, name="strlen") result(n)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: n
    end function

    ! --- Layouts --------------------------------------------------------------------------------------------------
    function reshard_layout_parse(text, ndim, shape, world, layout) bind(C) result(status)
      import :: c_char, c_int, c_int64_t, c_ptr
      character(kind=c_char), intent(in) :: text(*)
      integer(c_int), value :: ndim
      integer(c_int64_t), intent(in) :: shape(*)
      integer(c_int64_t), value :: world
      type(c_ptr), intent(out) :: layout
      integer(c_int) :: status
    end function
    ! ranks: c_null_ptr, or c_loc of a list of c_int64_t.
    function reshard_layout_create_cyclic(ndim, shape, world, grid, block, ranks, layout) bind(C) result(status)
      import :: c_int, c_int64_t, c_ptr
      integer(c_int), value :: ndim
      integer(c_int64_t), intent(in) :: shape(*), grid(*), block(*)
      integer(c_int64_t), value :: world
      type(c_ptr), value :: ranks
      type(c_ptr), intent(out) :: layout
      integer(c_int) :: status
    end function
    function reshard_layout_scalapack(desc, nprow, npcol, ranks, layout) bind(C) result(status)
      import :: c_int, c_ptr
      integer(c_int), intent(in) :: desc(9)
      integer(c_int), value :: nprow, npcol
      type(c_ptr), value :: ranks
      type(c_ptr), intent(out) :: layout
      integer(c_int) :: status
    end function
    function reshard_layout_extend(layout, world, extended) bind(C) result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: layout
      integer(c_int64_t), value :: world
      type(c_ptr), intent(out) :: extended
      integer(c_int) :: status
    end function
    subroutine reshard_layout_release(layout) bind(C)
      import :: c_ptr
      type(c_ptr), value :: layout
    end subroutine
    function reshard_layout_world(layout) bind(C) result(world)
      import :: c_int64_t, c_ptr
      type(c_ptr), value :: layout
      integer(c_int64_t) :: world
    end function
    function reshard_layout_buffer_count(layout, rank, n) bind(C) result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: layout
      integer(c_int64_t), value :: rank
      integer(c_int64_t), intent(out) :: n
      integer(c_int) :: status
    end function
    function reshard_layout_buffer_elements(layout, rank, buffer, elements) bind(C) result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: layout
      integer(c_int64_t), value :: rank, buffer
      integer(c_int64_t), intent(out) :: elements
      integer(c_int) :: status
    end function

    ! --- Plans ----------------------------------------------------------------------------------------------------
    ! options: c_null_ptr, or c_loc of reshard_plan_options.
    function reshard_plan_create(nentries, entries, rank, options, plan) bind(C) result(status)
      import :: c_int, c_int64_t, c_ptr, reshard_entry
      integer(c_int64_t), value :: nentries, rank
      type(reshard_entry), intent(in) :: entries(*)
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: plan
      integer(c_int) :: status
    end function
    subroutine reshard_plan_destroy(plan) bind(C)
      import :: c_ptr
      type(c_ptr), value :: plan
    end subroutine
    function reshard_plan_reverse(plan, reverse) bind(C) result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: plan
      type(c_ptr), intent(out) :: reverse
      integer(c_int) :: status
    end function
    function reshard_plan_get_info(plan, info) bind(C) result(status)
      import :: c_int, c_ptr, reshard_plan_info
      type(c_ptr), value :: plan
      type(reshard_plan_info), intent(out) :: info
      integer(c_int) :: status
    end function

    ! --- Transfers ------------------------------------------------------------------------------------------------
    ! options: c_null_ptr, or c_loc of reshard_transfer_options.
    function reshard_transfer_create(plan, comm, arrays, options, transfer) bind(C) result(status)
      import :: c_int, c_ptr, reshard_arrays
      type(c_ptr), value :: plan, comm, options
      type(reshard_arrays), intent(in) :: arrays
      type(c_ptr), intent(out) :: transfer
      integer(c_int) :: status
    end function
    function reshard_transfer_rebind(transfer, arrays) bind(C) result(status)
      import :: c_int, c_ptr, reshard_arrays
      type(c_ptr), value :: transfer
      type(reshard_arrays), intent(in) :: arrays
      integer(c_int) :: status
    end function
    ! stream: c_null_ptr on the CPU.
    function reshard_execute(transfer, stream) bind(C) result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: transfer, stream
      integer(c_int) :: status
    end function
    function reshard_transfer_get_info(transfer, info) bind(C) result(status)
      import :: c_int, c_ptr, reshard_transfer_info
      type(c_ptr), value :: transfer
      type(reshard_transfer_info), intent(out) :: info
      integer(c_int) :: status
    end function
    subroutine reshard_transfer_destroy(transfer) bind(C)
      import :: c_ptr
      type(c_ptr), value :: transfer
    end subroutine

    ! --- Communicators --------------------------------------------------------------------------------------------
    ! handle: a communicator of MPI, as `use mpi` has it (MPI_COMM_WORLD), or comm%mpi_val of `use mpi_f08`. device:
    ! c_null_ptr.
    function reshard_comm_from_mpi_fortran(handle, device, timeout_ms, comm) bind(C) result(status)
      import :: c_int, c_int64_t, c_ptr
      integer(c_int), value :: handle
      type(c_ptr), value :: device
      integer(c_int64_t), value :: timeout_ms
      type(c_ptr), intent(out) :: comm
      integer(c_int) :: status
    end function
    ! allgather: c_funloc(reshard_rendezvous_allgather), with c_loc of its reshard_rendezvous as user. options:
    ! c_null_ptr, or c_loc of reshard_node_options.
    function reshard_comm_create_node(n, rank, allgather, user, options, comm) bind(C) result(status)
      import :: c_funptr, c_int, c_int64_t, c_ptr
      integer(c_int64_t), value :: n, rank
      type(c_funptr), value :: allgather
      type(c_ptr), value :: user, options
      type(c_ptr), intent(out) :: comm
      integer(c_int) :: status
    end function
    function reshard_rendezvous_from_environment(rendezvous) bind(C) result(status)
      import :: c_int, reshard_rendezvous
      type(reshard_rendezvous), intent(inout) :: rendezvous
      integer(c_int) :: status
    end function
    function reshard_rendezvous_allgather(rendezvous, mine, bytes, all) bind(C) result(status)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: rendezvous, mine, all
      integer(c_size_t), value :: bytes
      integer(c_int) :: status
    end function
    ! memory: for arrays that the ranks of a node read directly; c_f_pointer gives it a type and a shape.
    function reshard_comm_alloc(comm, bytes, memory) bind(C) result(status)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: comm
      integer(c_size_t), value :: bytes
      type(c_ptr), intent(out) :: memory
      integer(c_int) :: status
    end function
    function reshard_comm_free(comm, memory) bind(C) result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: comm, memory
      integer(c_int) :: status
    end function
    function reshard_comm_split(comm, color, key, sub) bind(C) result(status)
      import :: c_int, c_int64_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int64_t), value :: color, key
      type(c_ptr), intent(out) :: sub
      integer(c_int) :: status
    end function
    function reshard_comm_barrier(comm) bind(C) result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: comm
      integer(c_int) :: status
    end function
    function reshard_comm_abort(comm) bind(C) result(status)
      import :: c_int, c_ptr
      type(c_ptr), value :: comm
      integer(c_int) :: status
    end function
    function reshard_comm_rank(comm) bind(C) result(rank)
      import :: c_int64_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int64_t) :: rank
    end function
    function reshard_comm_size(comm) bind(C) result(n)
      import :: c_int64_t, c_ptr
      type(c_ptr), value :: comm
      integer(c_int64_t) :: n
    end function
    function reshard_comm_get_stats(comm, stats) bind(C) result(status)
      import :: c_int, c_ptr, reshard_comm_stats
      type(c_ptr), value :: comm
      type(reshard_comm_stats), intent(out) :: stats
      integer(c_int) :: status
    end function
    subroutine reshard_comm_destroy(comm) bind(C)
      import :: c_ptr
      type(c_ptr), value :: comm
    end subroutine
  end interface

contains

  ! The last error of this thread.
  function reshard_error_text() result(text)
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: from(:)
    type(c_ptr) :: at
    integer :: i
    at = reshard_last_error()
    call c_f_pointer(at, from, [c_strlen(at)])
    allocate (character(len=size(from)) :: text)
    do i = 1, size(from)
      text(i:i) = from(i)
    end do
  end function
end module
