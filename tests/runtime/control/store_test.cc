// Stores: what processes see alike through a folder or a server, deadlines, and what strangers and ruins do.

#include <kolo/store.h>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <kolo/error.h>

#include "ops/host/file_descriptor.h"
#include "tests/support/environment.h"

namespace kolo {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(const Store::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::string failure_text(const std::function<void()>& work, ErrorCode code) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

/// A store that several users see, each through an object of its own.
struct Kind {
  std::string name;
  std::function<std::function<std::unique_ptr<Store>()>()> start;
};

class Stores : public ::testing::TestWithParam<Kind> {
 protected:
  const std::function<std::unique_ptr<Store>()> open_ = GetParam().start();
};

TEST_P(Stores, KeepValues) {
  const auto one = open_(), other = open_();
  one->set("a/b c", bytes_of("first"));
  EXPECT_EQ(text_of(other->get("a/b c", Clock::now())), "first");
  other->set("a/b c", {});
  EXPECT_TRUE(one->get("a/b c", Clock::now()).empty());
  const std::string long_key(512, '/'), long_value(3 << 20, 'v');
  one->set(long_key, bytes_of(long_value));
  EXPECT_EQ(text_of(other->get(long_key, Clock::now())), long_value);
  one->remove(long_key);
  one->remove("never");
  failure_text([&] { (void)other->get(long_key, Clock::now()); }, ErrorCode::stalled);
  failure_text([&] { one->set("", {}); }, ErrorCode::invalid_argument);
  failure_text([&] { one->set(std::string(513, 'k'), {}); }, ErrorCode::invalid_argument);
}

TEST_P(Stores, AddWithoutLosingAnything) {
  std::vector<std::jthread> users;
  for (int i = 0; i < 4; ++i) {
    users.emplace_back([store = open_()] {
      for (int turn = 0; turn < 100; ++turn) store->add("n", 2);
    });
  }
  users.clear();
  const auto store = open_();
  EXPECT_EQ(store->add("n", -1), 799);
  store->remove("n");
  EXPECT_EQ(store->add("n", 5), 5);
  store->set("word", bytes_of("no number"));
  EXPECT_NE(failure_text([&] { store->add("word", 1); }, ErrorCode::invalid_argument).find("'word'"),
            std::string::npos);
  EXPECT_EQ(store->add("n", 1), 6);  // and goes on
}

TEST_P(Stores, WaitForValues) {
  const auto one = open_();
  std::jthread later([other = open_()] {
    std::this_thread::sleep_for(50ms);
    other->set("late", bytes_of("here"));
  });
  EXPECT_EQ(text_of(one->get("late", Clock::now() + 60s)), "here");
  const auto start = Clock::now();
  EXPECT_NE(failure_text([&] { (void)one->get("never", start + 100ms); }, ErrorCode::stalled).find("'never'"),
            std::string::npos);
  EXPECT_GE(Clock::now() - start, 100ms);
}

TEST_P(Stores, ServeProcesses) {
  const auto store = open_();
  std::vector<pid_t> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    try {
      const auto mine = open_();
      mine->set("from" + std::to_string(i), bytes_of("child"));
      _exit(mine->add("children", 1) > 0 ? 0 : 1);
    } catch (const Error&) {
      _exit(2);
    }
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(text_of(store->get("from" + std::to_string(i), Clock::now() + 30s)), "child");
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(store->add("children", 0), 3);
}

const auto kinds = ::testing::Values(
    Kind{"File",
         [] {
           auto folder = std::make_shared<testing::TempFolder>();
           return [folder] { return std::make_unique<FileStore>(folder->path()); };
         }},
    Kind{"Tcp", [] {
           auto server = std::make_shared<TcpStore>("127.0.0.1", 0, true, 30s);
           return [server] { return std::make_unique<TcpStore>("127.0.0.1", server->port(), false, 30s); };
         }});
INSTANTIATE_TEST_SUITE_P(Of, Stores, kinds, [](const auto& kind) { return kind.param.name; });

TEST(FileStore, NoticesAValueThatWasCutShort) {
  const testing::TempFolder folder;
  FileStore store(folder.path());
  store.set("key", bytes_of("value"));
  for (const std::uintmax_t size : {12, 8, 3, 0}) {
    std::filesystem::resize_file(folder.path() / "key.value", size);
    EXPECT_NE(failure_text([&] { (void)store.get("key", Clock::now() + 60s); }, ErrorCode::backend).find("key.value"),
              std::string::npos);
  }
  store.set("key", bytes_of("anew"));
  EXPECT_EQ(text_of(store.get("key", Clock::now())), "anew");
  EXPECT_NE(failure_text([&] { FileStore(folder.path() / "key.value"); }, ErrorCode::backend).find("no folder"),
            std::string::npos);
}

FileDescriptor stranger(std::uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return socket;
}
void say(const FileDescriptor& socket, std::string_view text) {
  (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}
/// Whether the server closes the connection, whatever it says before.
bool shown_out(const FileDescriptor& socket) {
  char answer[4096];
  for (;;) {
    const ssize_t count = ::recv(socket.get(), answer, sizeof answer, 0);
    if (count <= 0) return count == 0 || errno == ECONNRESET;
  }
}

TEST(TcpStore, IsNotHarmedByStrangers) {
  TcpStore store("127.0.0.1", 0, true, 30s);
  store.set("key", bytes_of("value"));
  const std::string greeting = "kolo store 1\n";
  using namespace std::string_literals;
  for (const std::string& text :
       {"GET / HTTP/1.1\r\n\r\n"s, greeting + "\xff\xff\xff\xff"s, greeting + "\0\0\0\0"s, greeting + "\1\0\0\0\7"s,
        greeting + "\5\0\0\0\0\xff\xff\xff\xff"s, greeting + "\5\0\0\0\1\0\0\0\0"s,
        greeting + "\12\0\0\0\0\1\0\0\0k\xff\xff\xff\xff"s, greeting + "\7\0\0\0\3\1\0\0\0kx"s}) {
    const FileDescriptor socket = stranger(store.port());
    say(socket, text);
    EXPECT_TRUE(shown_out(socket)) << ::testing::PrintToString(text);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string text = i % 2 == 0 ? greeting : "";
    for (auto length = random() % 100; length > 0; --length) text += static_cast<char>(random() % (i % 4 + 2));
    say(stranger(store.port()), text);
  }
  const FileDescriptor silent = stranger(store.port());
  EXPECT_EQ(text_of(store.get("key", Clock::now())), "value");
}

TEST(TcpStore, NoticesThatItsServerHasGone) {
  auto server = std::make_unique<TcpStore>("127.0.0.1", 0, true, 30s);
  const std::uint16_t port = server->port();
  TcpStore store("127.0.0.1", port, false, 30s);
  std::jthread ends([&] {
    std::this_thread::sleep_for(50ms);
    server.reset();
  });
  EXPECT_NE(failure_text([&] { (void)store.get("key", Clock::now() + 600s); }, ErrorCode::backend).find("has gone"),
            std::string::npos);
  failure_text([&] { store.set("key", {}); }, ErrorCode::backend);
  ends.join();
  EXPECT_NE(failure_text([&] { TcpStore("127.0.0.1", port, false, 100ms); }, ErrorCode::backend)
                .find("there is no store at 127.0.0.1:" + std::to_string(port)),
            std::string::npos);
}

TEST(TcpStore, WaitsForItsServer) {
  const std::uint16_t port = TcpStore("127.0.0.1", 0, true, 30s).port();
  std::optional<TcpStore> server;
  std::jthread later([&] {
    std::this_thread::sleep_for(100ms);
    server.emplace("127.0.0.1", port, true, 30s);
  });
  TcpStore store("127.0.0.1", port, false, 30s);
  EXPECT_EQ(store.add("n", 1), 1);
  EXPECT_NE(failure_text([&] { TcpStore("127.0.0.1", port, true, 30s); }, ErrorCode::backend).find("cannot serve"),
            std::string::npos);
}

}  // namespace
}  // namespace kolo
