! Rows to columns over processes of one node, as many as a launcher has started, or one: gfortran reshard.f90
! node.f90 -lreshard. A row of the matrix is a row of the tensor, so an array of Fortran has strides [1, lld].
program example
  use, intrinsic :: iso_c_binding
  use reshard
  implicit none
  integer, parameter :: n = 512
  type(reshard_rendezvous), target :: world
  type(reshard_entry) :: entry(1)
  type(reshard_arrays) :: arrays
  type(reshard_transfer_info) :: info
  type(c_ptr) :: comm, rows, columns, plan, transfer
  type(c_ptr), target :: src(1), dst(1), src_strides(1), dst_strides(1)
  integer(c_int64_t), target :: row_strides(2), column_strides(2)
  real(c_float), pointer :: a(:, :), b(:, :)
  integer(c_int64_t) :: rank, ranks, part
  integer :: i, j

  call check(reshard_rendezvous_from_environment(world))
  call check(reshard_comm_create_node(world%n, world%rank, c_funloc(reshard_rendezvous_allgather), c_loc(world), &
                                      c_null_ptr, comm))
  rank = reshard_comm_rank(comm)
  ranks = reshard_comm_size(comm)
  part = n / ranks ! which has no rest

  call check(reshard_layout_parse("chunk(0)"//c_null_char, 2_c_int, [int(n, c_int64_t), int(n, c_int64_t)], ranks, rows))
  call check(reshard_layout_parse("chunk(1)"//c_null_char, 2_c_int, [int(n, c_int64_t), int(n, c_int64_t)], ranks, columns))
  entry(1)%src = rows
  entry(1)%dst = columns
  entry(1)%dtype = RESHARD_F32
  call check(reshard_plan_create(1_c_int64_t, entry, rank, c_null_ptr, plan))

  call check(reshard_comm_alloc(comm, int(4 * part * n, c_size_t), src(1))) ! which peers read directly
  call check(reshard_comm_alloc(comm, int(4 * part * n, c_size_t), dst(1)))
  call c_f_pointer(src(1), a, [int(part), n])
  call c_f_pointer(dst(1), b, [n, int(part)])
  row_strides = [1_c_int64_t, part]
  column_strides = [1_c_int64_t, int(n, c_int64_t)]
  src_strides(1) = c_loc(row_strides)
  dst_strides(1) = c_loc(column_strides)
  arrays%src = c_loc(src)
  arrays%dst = c_loc(dst)
  arrays%src_strides = c_loc(src_strides)
  arrays%dst_strides = c_loc(dst_strides)
  arrays%nsrc = 1
  arrays%ndst = 1
  call check(reshard_transfer_create(plan, comm, arrays, c_null_ptr, transfer))

  do j = 1, n
    do i = 1, int(part)
      a(i, j) = real(1000 * (int(rank * part) + i) + j)
    end do
  end do
  call check(reshard_execute(transfer, c_null_ptr))
  do j = 1, int(part)
    do i = 1, n
      if (b(i, j) /= real(1000 * i + int(rank * part) + j)) error stop "a wrong element"
    end do
  end do
  call check(reshard_transfer_get_info(transfer, info))
  if (info%path /= RESHARD_PATH_DIRECT) error stop "not on the direct path"

  if (reshard_layout_parse("chunk(7)"//c_null_char, 2_c_int, [1_c_int64_t, 1_c_int64_t], ranks, rows) /= &
      RESHARD_ERROR_INVALID) error stop "no error"
  if (index(reshard_error_text(), "dim 7") == 0) error stop "the error says something else"
  call reshard_transfer_destroy(transfer)
  call reshard_plan_destroy(plan)
  call reshard_layout_release(entry(1)%src)
  call reshard_layout_release(columns)
  call check(reshard_comm_free(comm, src(1)))
  call check(reshard_comm_free(comm, dst(1)))
  call reshard_comm_destroy(comm)
  print "(a)", "Fortran: right"

contains

  subroutine check(status)
    integer(c_int), intent(in) :: status
    if (status == RESHARD_SUCCESS) return
    print "(a)", reshard_error_text()
    error stop
  end subroutine
end program
