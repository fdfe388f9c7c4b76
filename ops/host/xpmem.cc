#include "ops/host/xpmem.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <vector>

#include <kolo/error.h>

#include "ops/host/file_descriptor.h"

namespace kolo {
namespace {

// Of xpmem.h.
constexpr int permit_mode = 1, read_write = 2;
void* const of_this_user = reinterpret_cast<void*>(0600);

[[noreturn]] void fail(const std::string& what, int why) {
  throw Error(ErrorCode::backend, fmt::format("{} ({})", what, std::generic_category().message(why)));
}

/// Looks at one byte of every page. By a call that copies them: it fails where a pointer would end in SIGBUS.
bool has_all_pages(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t at_once = 1024;  // the most that one call takes
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const FileDescriptor out(ends[0]), in(ends[1]);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<iovec> looks;
  std::array<std::byte, at_once> seen;
  for (std::size_t at = 0; at < bytes; looks.clear()) {
    for (; at < bytes && looks.size() < at_once; at += page) looks.push_back({const_cast<std::byte*>(data + at), 1});
    const auto count = static_cast<ssize_t>(looks.size());
    if (writev(in.get(), looks.data(), static_cast<int>(count)) != count) return false;
    if (::read(out.get(), seen.data(), looks.size()) != count) return false;
  }
  return true;
}

}  // namespace

std::shared_ptr<const Xpmem> Xpmem::open(const std::string& device) {
  // Not opened here: when a process closes the device, whatever opened it, the module ends all that the process has.
  if (access(device.c_str(), R_OK | W_OK) != 0) return nullptr;
  // Stays loaded: it keeps a descriptor of the device, for ever.
  void* const file = dlopen("libxpmem.so.0", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!file) return nullptr;
  bool all = true;
  const auto find = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(file, name));
    all &= function != nullptr;
  };
  Library library{};
  find(library.make, "xpmem_make");
  find(library.remove, "xpmem_remove");
  find(library.get, "xpmem_get");
  find(library.release, "xpmem_release");
  find(library.attach, "xpmem_attach");
  find(library.detach, "xpmem_detach");
  dlclose(file);
  return all ? std::shared_ptr<const Xpmem>(new Xpmem(library)) : nullptr;
}

Xpmem::Shown Xpmem::show(std::byte* begin, std::size_t bytes) const {
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL)  // which an old system says
    fail(fmt::format("there is no memory for {} bytes that peers are to reach", bytes), errno);
  const Id id = library_.make(begin, bytes, permit_mode, of_this_user);
  if (id <= 0) fail(fmt::format("cannot show {} bytes to peers by XPMEM", bytes), errno);
  return {{begin, [self = shared_from_this(), id](std::byte*) { (void)self->library_.remove(id); }}, id};
}

std::shared_ptr<std::byte> Xpmem::attach(Id id, std::size_t bytes) const {
  const auto why_not = [=] { return fmt::format("cannot reach {} bytes of another rank's tensors by XPMEM", bytes); };
  const Id permit = library_.get(id, read_write, permit_mode, nullptr);
  if (permit <= 0) fail(why_not(), errno);
  void* const data = library_.attach({permit, 0}, bytes, nullptr);
  if (data == MAP_FAILED) {
    const int why = errno;
    (void)library_.release(permit);
    fail(why_not(), why);
  }
  std::shared_ptr<std::byte> attached(static_cast<std::byte*>(data),
                                      [self = shared_from_this(), permit](std::byte* begin) {
                                        (void)self->library_.detach(begin);
                                        (void)self->library_.release(permit);
                                      });
  if (!has_all_pages(attached.get(), bytes)) fail(why_not(), errno);
  return attached;
}

}  // namespace kolo
