// fsync does nothing in programs that link this with --wrap=fsync: tests that write many runs wait
// for no disk.

extern "C" int __wrap_fsync(int) {
  return 0;
}
