#include "models/util/atomic_folder.h"

#include <fcntl.h>
#include <stdio.h>  // NOLINT(modernize-deprecated-headers): renameat2() is no part of <cstdio>

#include <cerrno>
#include <system_error>
#include <utility>

#include "models/util/atomic_file.h"

namespace kolo::models {

namespace fs = std::filesystem;

AtomicFolder::AtomicFolder(fs::path temporary, fs::path target)
    : temporary_(std::move(temporary)), target_(std::move(target)) {
  std::error_code error;
  fs::remove_all(temporary_, error);
  fs::create_directories(temporary_, error);
  if (error) refuse_to_write(target_, error.message());
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

void AtomicFolder::commit() {
  sync_folder(temporary_);
  const auto rename = [&](const fs::path& from, const fs::path& to, unsigned flags) {
    return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0;
  };
  bool done = rename(temporary_, target_, 0) || rename(temporary_, target_, RENAME_EXCHANGE);
  if (!done && (errno == EINVAL || errno == ENOSYS)) {  // a file system that cannot exchange names
    const fs::path old = temporary_.string() + "-old";
    done = rename(target_, old, 0) && rename(temporary_, target_, 0);
    if (done) {
      temporary_ = old;
    } else {
      (void)rename(old, target_, 0);
    }
  }
  if (!done) refuse_to_write(target_, std::generic_category().message(errno));
  sync_folder(target_.parent_path());
}

}  // namespace kolo::models
