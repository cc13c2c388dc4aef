! p?gemr2d as a plan: a submatrix of 30 x 25 elements moves from a grid of 2 x 3 processes, numbered by rows, to one of
! 2 x 2, numbered by columns. Their first blocks are on other processes than the first ones. The grids have processes in
! common; processes from the seventh on are outside of both. Six processes of MPI or more: mpifort reshard.f90
! scalapack.f90 -lreshard_mpi -lreshard.
program example
  use, intrinsic :: iso_c_binding
  use mpi
  use reshard
  implicit none
  integer, parameter :: m_ = 3, n_ = 4, mb_ = 5, nb_ = 6, rsrc_ = 7, csrc_ = 8, lld_ = 9 ! of a descriptor
  integer, parameter :: m = 30, n = 25, ia = 3, ja = 2, ib = 5, jb = 4
  real(c_double), parameter :: untouched = -1

  ! A matrix that is block-cyclic: its descriptor, its grid, and where this process is there; -1: outside.
  type matrix
    integer(c_int) :: desc(9), nprow, npcol
    integer :: myrow = -1, mycol = -1
    integer(c_int64_t), allocatable :: ranks(:) ! of the grid, row by row
    real(c_double), pointer :: local(:, :) => null()
    type(c_ptr) :: memory = c_null_ptr
  end type

  type(matrix) :: a, b
  type(c_ptr) :: comm, plan, transfer
  integer :: ierror, me, turn
  integer(c_int64_t) :: right, all_right

  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierror)
  call check(reshard_comm_from_mpi_fortran(MPI_COMM_WORLD, c_null_ptr, 0_c_int64_t, comm))
  ! BLACS_GRIDINIT(..., 'R', 2, 3) of ranks 0 to 5, and BLACS_GRIDMAP of ranks 1 to 4 by columns.
  call open_matrix(a, [1, 0, 37, 29, 5, 3, 1, 2, 0], 2, 3, [0, 1, 2, 3, 4, 5])
  call open_matrix(b, [1, 0, 40, 33, 4, 7, 1, 0, 0], 2, 2, [1, 3, 2, 4])
  call prepare_gemr2d()
  do turn = 1, 2 ! a plan serves as often as it is needed
    call fill(turn)
    call check(reshard_execute(transfer, c_null_ptr))
    right = count_right(turn)
    call MPI_Reduce(right, all_right, 1, MPI_INTEGER8, MPI_SUM, 0, MPI_COMM_WORLD, ierror)
    if (me == 0 .and. all_right /= 40 * 33) error stop "some elements are wrong"
  end do
  call reshard_transfer_destroy(transfer)
  call reshard_plan_destroy(plan)
  call check(reshard_comm_free(comm, a%memory))
  call check(reshard_comm_free(comm, b%memory))
  call reshard_comm_destroy(comm)
  call MPI_Finalize(ierror)
  if (me == 0) print "(a,i0,a)", "p?gemr2d: ", all_right, " elements are right"

contains

  ! Makes call pdgemr2d(m, n, a, ia, ja, desca, b, ib, jb, descb, context) a transfer.
  subroutine prepare_gemr2d()
    type(c_ptr), target :: src(1), dst(1), src_strides(1), dst_strides(1)
    integer(c_int64_t), target :: at_a(2), at_b(2), part(2), strides_a(2), strides_b(2)
    type(reshard_entry) :: entry(1)
    type(reshard_arrays) :: arrays
    entry(1)%src = layout_of(a)
    entry(1)%dst = layout_of(b)
    entry(1)%dtype = RESHARD_F64
    at_a = [ia - 1, ja - 1]
    at_b = [ib - 1, jb - 1]
    part = [m, n]
    entry(1)%src_offset = c_loc(at_a)
    entry(1)%src_extent = c_loc(part)
    entry(1)%dst_offset = c_loc(at_b)
    call check(reshard_plan_create(1_c_int64_t, entry, reshard_comm_rank(comm), c_null_ptr, plan))
    call reshard_layout_release(entry(1)%src)
    call reshard_layout_release(entry(1)%dst)
    src(1) = a%memory
    dst(1) = b%memory
    strides_a = [1, a%desc(lld_)]
    strides_b = [1, b%desc(lld_)]
    src_strides(1) = c_loc(strides_a)
    dst_strides(1) = c_loc(strides_b)
    arrays%src = c_loc(src)
    arrays%dst = c_loc(dst)
    arrays%src_strides = c_loc(src_strides)
    arrays%dst_strides = c_loc(dst_strides)
    call check(reshard_transfer_create(plan, comm, arrays, c_null_ptr, transfer))
  end subroutine

  ! The same on all processes, those outside of the grid included.
  function layout_of(x) result(layout)
    type(matrix), intent(in), target :: x
    type(c_ptr) :: grid, layout
    call check(reshard_layout_scalapack(x%desc, x%nprow, x%npcol, c_loc(x%ranks), grid))
    call check(reshard_layout_extend(grid, reshard_comm_size(comm), layout))
    call reshard_layout_release(grid)
  end function

  ! The local array has two rows more than it needs; processes outside have none.
  subroutine open_matrix(x, desc, nprow, npcol, ranks)
    type(matrix), intent(inout) :: x
    integer, intent(in) :: desc(9), nprow, npcol, ranks(:)
    integer :: i, columns
    x%desc = desc
    x%nprow = nprow
    x%npcol = npcol
    x%ranks = ranks
    do i = 1, size(ranks)
      if (ranks(i) /= me) cycle
      x%myrow = (i - 1) / npcol
      x%mycol = mod(i - 1, npcol)
    end do
    columns = 0
    if (x%myrow >= 0) then
      x%desc(lld_) = extent(desc(m_), desc(mb_), x%myrow, desc(rsrc_), nprow) + 2
      columns = extent(desc(n_), desc(nb_), x%mycol, desc(csrc_), npcol)
    end if
    call check(reshard_comm_alloc(comm, int(8 * x%desc(lld_) * columns, c_size_t), x%memory))
    if (columns > 0) call c_f_pointer(x%memory, x%local, [int(x%desc(lld_)), columns])
  end subroutine

  ! NUMROC of ScaLAPACK's tools: rows or columns of a process.
  integer function extent(total, block, process, source, processes)
    integer, intent(in) :: total, block, process, source, processes
    integer :: i
    extent = 0
    do i = 0, total - 1
      if (mod(i / block + source, processes) == process) extent = extent + 1
    end do
  end function

  ! INDXL2G: the place in the matrix, from 1, of a local row or column.
  integer function global(local, block, process, source, processes)
    integer, intent(in) :: local, block, process, source, processes
    global = ((local - 1) / block * processes + mod(processes + process - source, processes)) * block + &
             mod(local - 1, block) + 1
  end function

  integer function row_of(x, i)
    type(matrix), intent(in) :: x
    integer, intent(in) :: i
    row_of = global(i, x%desc(mb_), x%myrow, x%desc(rsrc_), x%nprow)
  end function

  integer function column_of(x, j)
    type(matrix), intent(in) :: x
    integer, intent(in) :: j
    column_of = global(j, x%desc(nb_), x%mycol, x%desc(csrc_), x%npcol)
  end function

  real(c_double) function value(row, column, turn)
    integer, intent(in) :: row, column, turn
    value = 1000000d0 * turn + 1000 * row + column
  end function

  subroutine fill(turn)
    integer, intent(in) :: turn
    integer :: i, j
    if (associated(b%local)) b%local = untouched
    if (.not. associated(a%local)) return
    a%local = untouched
    do j = 1, size(a%local, 2)
      do i = 1, size(a%local, 1) - 2
        a%local(i, j) = value(row_of(a, i), column_of(a, j), turn)
      end do
    end do
  end subroutine

  ! Elements of this process that are as they should be; the two rows more are as they were.
  integer(c_int64_t) function count_right(turn)
    integer, intent(in) :: turn
    integer :: i, j, row, column
    real(c_double) :: wanted
    count_right = 0
    if (.not. associated(b%local)) return
    do j = 1, size(b%local, 2)
      do i = 1, size(b%local, 1) - 2
        row = row_of(b, i)
        column = column_of(b, j)
        wanted = untouched
        if (row >= ib .and. row < ib + m .and. column >= jb .and. column < jb + n) &
          wanted = value(row - ib + ia, column - jb + ja, turn)
        if (b%local(i, j) == wanted) count_right = count_right + 1
      end do
      if (any(b%local(size(b%local, 1) - 1:, j) /= untouched)) error stop "memory between columns was written"
    end do
  end function

  subroutine check(status)
    integer(c_int), intent(in) :: status
    if (status == RESHARD_SUCCESS) return
    print "(a)", reshard_error_text()
    error stop
  end subroutine
end program
