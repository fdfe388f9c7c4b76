#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kolo/backend.h>
#include <kolo/error.h>

#include "ops/fetches.h"
#include "ops/outgoing.h"
#include "ops/parcel.h"

namespace kolo {

/// What this rank sends others and receives from them, without negotiation: the n-th send of a group, pair and tag
/// meets the n-th receive of it.
///
/// A message is a frame on the lane to its receiver: group, tag, type, bytes, number; if it is small, what is sent
/// follows (`eager`), else where it lies, if the lane can show that. The receiver keeps what nobody waits for yet. Once
/// message and receive have met, it answers: it has taken it; or copies it where it lies (Fetches), and answers again
/// at the end; or is to be sent the rest, which comes in frames of a part each, those of several messages in turn, what
/// is in it in bulk, if the lane can do that, up to an empty one; or refuses it, since it differs. Only then a send is
/// done. Of a message
/// that goes elsewhere the rest is empty: both ranks are bound once it is sent. A send that is withdrawn says so; if
/// its receive had met it meanwhile, that one waits for the next message. Where receivers take messages without asking,
/// the lane also says at once that one is withdrawn: until its receiver has heard which, none meets a receive. A
/// receive that is withdrawn while a message comes to it lets the rest of that go by.
///
/// So a rank keeps no more than others have in flight, and whoever waits for something hears everything: no order of
/// sends and receives blocks. Used by one thread at a time; never waits.
class Mailbox final {
 public:
  static constexpr std::size_t eager = 8 << 10, most_eager = 64 << 10;  // of a message; unanswered, to one rank

  /// `connect`: makes the lane to a rank; null: there is none.
  Mailbox(int rank, std::function<std::unique_ptr<ByteLane>(int)> connect)
      : rank_(rank), connect_(std::move(connect)) {}
  /// Nothing reads or writes any parcel's memory any more.
  ~Mailbox() {
    for (auto& [rank, peer] : peers_) {
      if (!peer.offered.empty()) peer.lane->withdraw();
    }
  }
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Begins. Throws Error{backend}, and has done nothing, if there is no lane to a peer.
  void post(Parcel& parcel);
  /// One pass over the lanes on which something is expected. Returns whether anything moved.
  bool advance();
  /// From now on nothing reads or writes the parcel's memory.
  void withdraw(Parcel& parcel);
  /// What has become done since it was taken last, but by withdraw().
  std::vector<Parcel*>& finished() { return finished_; }
  /// Whether advance() has something to do now.
  bool has_work() const;
  /// Whether a lane on which something is expected, or to be written, rings no doorbell.
  bool needs_polling() const;

 private:
  using Kind = Frame::Kind;
  using Verdict = Frame::Verdict;
  using How = Frame::How;
  struct Arrived {
    Frame message;
    std::vector<std::byte> bytes;  // what follows it: if it is eager, or of where it lies
    bool complete = true;
  };
  struct Receiving {
    Parcel* parcel = nullptr;  // null: withdrawn
    std::size_t left = 0;
  };
  struct Peer {
    /// Whether the peer has withdrawn nothing but what this rank has heard of.
    bool settled() const { return lane->withdrawn() <= fetches.heard(); }
    /// Whether the payload that is coming does so in bulk.
    bool in_bulk() const { return payload > 0 && frame.kind == Kind::data && frame.how == How::bulk; }
    bool pending() const { return in_bulk() ? lane->pending_bulk(payload) : end >= sizeof(Frame) || lane->pending(); }
    /// As many more parcels may hear of it: the lane listens while there is one.
    void expect(int change) {
      const bool before = std::exchange(expected, expected + change) > 0;
      if (before != (expected > 0)) lane->listen(!before);
    }

    std::unique_ptr<ByteLane> lane;
    int expected = 0;  // parcels that may hear of it
    // outgoing
    Outgoing outgoing;
    std::uint64_t next = 0;
    std::map<std::uint64_t, Parcel*> offered;          // not answered
    std::map<std::uint64_t, std::size_t> eager_bytes;  // not answered, withdrawn ones, too
    std::size_t eager_sum = 0;
    // incoming
    std::array<std::byte, 1024> buffer;
    std::size_t begin = 0, end = 0;
    std::size_t payload = 0;  // of the frame that is coming
    Frame frame;
    std::list<Arrived> arrived;
    std::size_t fresh = 0;  // of those the last, which are yet to meet receives
    std::map<std::uint64_t, Receiving> receiving;
    Fetches fetches;  // of these
  };

  Peer& peer_of(int rank);
  void put(Peer& peer, const Frame& frame, std::span<const std::byte> payload = {});
  bool write(Peer& peer);
  bool read(int rank, Peer& peer);
  bool fetch(Peer& peer);
  std::span<std::byte> place_of_payload(Peer& peer);
  std::size_t read_payload(Peer& peer);
  void payload_moved(Peer& peer, std::size_t bytes);
  void hear(int rank, Peer& peer);
  void hear_answer(int rank, Peer& peer);
  void hear_cancel(Peer& peer);
  void answer(Peer& peer, std::uint64_t number, Verdict verdict, const Parcel* parcel = nullptr);
  void match(Parcel& parcel);
  Parcel* receive_for(int rank, const Frame& message);
  void meet(int rank, Peer& peer, Parcel& parcel, std::list<Arrived>::iterator arrived);
  void finish(Parcel& parcel);
  void expect(const Parcel& parcel, int change);
  static bool fits(const Parcel& parcel, int rank, const Frame& message);
  static Frame frame_of(const Parcel& parcel);
  static Failure difference(int from, int to, const Frame& sent, const Frame& received);

  const int rank_;
  const std::function<std::unique_ptr<ByteLane>(int)> connect_;
  std::map<int, Peer> peers_;
  std::map<std::uint64_t, Parcel*> posted_;  // receives that are not matched, in their order
  std::vector<Parcel*> finished_;
  std::uint64_t received_ = 0;
};

}  // namespace kolo
