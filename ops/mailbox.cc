#include "ops/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace kolo {
namespace {

constexpr std::size_t most_in_a_pass = 1 << 20;  // bytes read from one rank
constexpr std::size_t fetched = 1 << 20;         // of a message, before it is another one's turn

}  // namespace

/// What it says to the other rank.
Frame Mailbox::frame_of(const Parcel& parcel) {
  const How how = parcel.elsewhere ? How::elsewhere : How::asked;
  return {{}, parcel.dtype, how, {}, parcel.tag, parcel.number, parcel.group, parcel.bytes};
}

Failure Mailbox::difference(int from, int to, const Frame& sent, const Frame& received) {
  const auto what = [](const Frame& it) {  // "12 bytes of f32"
    return fmt::format("{} bytes of {}{}", it.bytes, to_string(it.dtype), it.how == How::elsewhere ? " on a GPU" : "");
  };
  return {ErrorCode::mismatch,
          fmt::format("tag {}: rank {} sends {}, rank {} receives {}; pass tensors of one size and type, both in host "
                      "memory or both on GPUs",
                      received.tag, from, what(sent), to, what(received))};
}

Mailbox::Peer& Mailbox::peer_of(int rank) {
  if (const auto known = peers_.find(rank); known != peers_.end()) return known->second;
  auto lane = connect_(rank);
  if (!lane)
    throw Error(ErrorCode::backend,
                fmt::format("there is no way for messages from rank {} to rank {}; between nodes start the program "
                            "with mpirun",
                            rank_, rank));
  Peer& peer = peers_[rank];
  peer.lane = std::move(lane);
  return peer;
}

void Mailbox::expect(const Parcel& parcel, int change) {
  for (const int rank : parcel.peers) peers_.at(rank).expect(change);
}

void Mailbox::finish(Parcel& parcel) {
  parcel.done = true;
  if (parcel.sends && parcel.bytes > eager) peers_.at(parcel.peers.front()).lane->arrived({parcel.data, parcel.bytes});
  expect(parcel, -1);
  finished_.push_back(&parcel);
}

void Mailbox::post(Parcel& parcel) {
  for (const int rank : parcel.peers) (void)peer_of(rank);
  expect(parcel, 1);
  if (!parcel.sends) {
    parcel.number = received_++;
    for (const int rank : parcel.peers) read(rank, peers_.at(rank));  // what came before is matched first
    return match(parcel);
  }
  Peer& peer = peers_.at(parcel.peers.front());
  parcel.number = peer.next++;
  peer.offered[parcel.number] = &parcel;
  parcel.tag = parcel.tags.front();
  Frame message = frame_of(parcel);
  if (parcel.elsewhere) return put(peer, message);
  if (parcel.bytes <= eager && peer.eager_sum + parcel.bytes <= most_eager &&
      !peer.lane->needs_polling()) {  // there word of a withdrawal may be late
    message.how = How::eager;
    if (parcel.bytes > 0) peer.eager_sum += peer.eager_bytes[parcel.number] = parcel.bytes;
    return put(peer, message, {parcel.data, parcel.bytes});
  }
  const auto address = parcel.bytes > 0 ? peer.lane->show({parcel.data, parcel.bytes}) : std::nullopt;
  if (!address) return put(peer, message);
  message.how = How::shown;
  put(peer, message, std::as_bytes(std::span(*address)));
}

void Mailbox::withdraw(Parcel& parcel) {
  if (parcel.done) {
    std::erase(finished_, &parcel);
    return;
  }
  parcel.done = true;
  expect(parcel, -1);
  if (!parcel.sends) {
    if (!parcel.matched) return (void)posted_.erase(parcel.number);
    Peer& peer = peers_.at(parcel.peer);
    const auto found =
        std::ranges::find_if(peer.receiving, [&](const auto& one) { return one.second.parcel == &parcel; });
    found->second.parcel = nullptr;
    if (!peer.fetches.drop(found->first)) return;
    answer(peer, found->first, Verdict::taken);
    peer.receiving.erase(found);
    return;
  }
  Peer& peer = peers_.at(parcel.peers.front());
  peer.offered.erase(parcel.number);
  peer.outgoing.withdraw(parcel);
  peer.lane->withdraw();
  peer.lane->given_up({parcel.data, parcel.bytes});
  put(peer, {.kind = Kind::cancel, .number = parcel.number});
}

bool Mailbox::has_work() const {
  return !finished_.empty() || std::ranges::any_of(peers_, [](const auto& entry) {
    const Peer& peer = entry.second;
    return !peer.outgoing.empty() || peer.fetches.has_work() || (peer.expected > 0 && peer.pending());
  });
}

bool Mailbox::needs_polling() const {
  return std::ranges::any_of(peers_, [](const auto& entry) {
    const Peer& peer = entry.second;
    return (peer.expected > 0 || !peer.outgoing.empty()) && peer.lane->needs_polling();
  });
}

bool Mailbox::advance() {
  bool moved = false;
  for (auto& [rank, peer] : peers_) {
    if (peer.expected > 0) moved |= read(rank, peer);
    if (peer.fetches.has_work()) moved |= fetch(peer);
    if (!peer.outgoing.empty()) moved |= write(peer);
  }
  return moved;
}

// ---- outgoing -------------------------------------------------------------------------------------------------------

void Mailbox::put(Peer& peer, const Frame& frame, std::span<const std::byte> payload) {
  peer.outgoing.put(frame, payload);
  (void)write(peer);
}

bool Mailbox::write(Peer& peer) {
  return peer.outgoing.write(*peer.lane, most_in_a_pass, [this](Parcel& parcel) { finish(parcel); });
}

/// To a message; `parcel`: what it does not fit.
void Mailbox::answer(Peer& peer, std::uint64_t number, Verdict verdict, const Parcel* parcel) {
  Frame frame = parcel ? frame_of(*parcel) : Frame{};
  frame.kind = Kind::answer;
  frame.verdict = verdict;
  frame.number = number;
  put(peer, frame);
}

// ---- incoming -------------------------------------------------------------------------------------------------------

/// What has come meets receives only when all was heard, and what is withdrawn: the next word may be that it is.
bool Mailbox::read(int rank, Peer& peer) {
  bool moved = false;
  for (std::size_t sum = 0, count = 1; count > 0 && sum < most_in_a_pass; sum += count) {
    while (peer.begin < peer.end) {  // what has been read
      const std::size_t there = peer.end - peer.begin;
      if (peer.in_bulk()) break;
      if (peer.payload > 0) {
        const std::size_t part_of_it = std::min(there, peer.payload);
        const auto place = place_of_payload(peer);
        if (!place.empty()) std::memcpy(place.data(), peer.buffer.data() + peer.begin, part_of_it);
        peer.begin += part_of_it;
        payload_moved(peer, part_of_it);
        continue;
      }
      if (there < sizeof(Frame)) break;
      std::memcpy(&peer.frame, peer.buffer.data() + peer.begin, sizeof(Frame));
      peer.begin += sizeof(Frame);
      moved = true;
      hear(rank, peer);
    }
    std::memmove(peer.buffer.data(), peer.buffer.data() + peer.begin, peer.end - peer.begin);
    peer.end -= std::exchange(peer.begin, 0);
    if (peer.payload > 0) {  // the buffer is empty, unless it comes in bulk
      count = read_payload(peer);
      if (count > 0) payload_moved(peer, count);
    } else {
      count = peer.lane->read(std::span(peer.buffer).subspan(peer.end));
      peer.end += count;
    }
    moved |= count > 0;
  }
  while (peer.fresh > 0 && peer.settled()) {
    const auto one = std::prev(peer.arrived.end(), static_cast<std::ptrdiff_t>(peer.fresh));
    if (!one->complete) break;
    --peer.fresh;
    Parcel* const parcel = receive_for(rank, one->message);
    if (!parcel) continue;
    posted_.erase(parcel->number);
    meet(rank, peer, *parcel, one);
  }
  return moved;
}

/// Where the payload that is coming goes; nowhere if nobody wants it any more.
std::span<std::byte> Mailbox::place_of_payload(Peer& peer) {
  if (peer.frame.kind == Kind::message) {
    auto& bytes = peer.arrived.back().bytes;
    return std::span(bytes).last(peer.payload);
  }
  const auto known = peer.receiving.find(peer.frame.number);
  if (known == peer.receiving.end() || !known->second.parcel) return {};
  return {known->second.parcel->data + known->second.parcel->moved, peer.payload};
}

std::size_t Mailbox::read_payload(Peer& peer) {
  const auto place = place_of_payload(peer);
  if (peer.in_bulk()) {
    const auto known = peer.receiving.find(peer.frame.number);
    return peer.lane->read_bulk(place.data(), peer.payload, place.empty() ? 0 : known->second.parcel->received);
  }
  const auto buffer = std::span(peer.buffer);
  return peer.lane->read(place.empty() ? buffer.first(std::min(buffer.size(), peer.payload)) : place);
}

void Mailbox::payload_moved(Peer& peer, std::size_t bytes) {
  peer.payload -= bytes;
  if (peer.frame.kind == Kind::message) {
    peer.arrived.back().complete = peer.payload == 0;
    return;
  }
  const auto known = peer.receiving.find(peer.frame.number);
  if (known == peer.receiving.end()) return;
  Receiving& receiving = known->second;
  if (receiving.parcel) receiving.parcel->moved += bytes;
  receiving.left -= bytes;
  if (receiving.left > 0 || peer.frame.bytes > 0) return;  // its end has not come, or it is withdrawn
  if (receiving.parcel) finish(*receiving.parcel);
  peer.receiving.erase(known);
}

void Mailbox::hear(int rank, Peer& peer) {
  switch (peer.frame.kind) {
    case Kind::message:
      if (peer.frame.how == How::eager) peer.payload = peer.frame.bytes;
      if (peer.frame.how == How::shown) peer.payload = sizeof(LaneAddress);
      peer.arrived.push_back({peer.frame, std::vector<std::byte>(peer.payload), peer.payload == 0});
      ++peer.fresh;
      return;
    case Kind::answer: return hear_answer(rank, peer);
    case Kind::data:
      peer.payload = peer.frame.bytes;
      if (peer.payload == 0) payload_moved(peer, 0);
      return;
    case Kind::cancel: return hear_cancel(peer);
  }
}

/// A receive and a message that is complete, as far as it has come without being asked for.
void Mailbox::meet(int rank, Peer& peer, Parcel& parcel, std::list<Arrived>::iterator arrived) {
  const Arrived one = std::move(*arrived);
  const Frame& message = one.message;
  peer.arrived.erase(arrived);
  parcel.peer = rank;
  parcel.tag = message.tag;
  const bool elsewhere = message.how == How::elsewhere;
  const bool fitting = parcel.shorter ? message.bytes <= parcel.bytes : message.bytes == parcel.bytes;
  if (parcel.dtype != message.dtype || !fitting || parcel.elsewhere != elsewhere) {
    parcel.failure = difference(rank, rank_, message, frame_of(parcel));
    answer(peer, message.number, Verdict::refused, &parcel);
    return finish(parcel);
  }
  parcel.matched = true;
  parcel.received = message.bytes;
  parcel.moved = 0;
  if (message.how != How::eager) {
    peer.receiving[message.number] = {&parcel, elsewhere ? 0 : message.bytes};
    if (message.how == How::asked || elsewhere) return answer(peer, message.number, Verdict::go);
    Fetches::Message shown{.number = message.number, .to = {parcel.data, message.bytes}};
    std::memcpy(&shown.address, one.bytes.data(), sizeof(shown.address));
    return peer.fetches.add(shown);
  }
  if (!one.bytes.empty()) std::memcpy(parcel.data, one.bytes.data(), one.bytes.size());
  answer(peer, message.number, Verdict::taken);
  finish(parcel);
}

/// Copies what the peer has shown.
bool Mailbox::fetch(Peer& peer) {
  bool moved = false;
  for (std::size_t sum = 0; sum < most_in_a_pass && peer.fetches.has_work(); sum += fetched) {
    const auto news = peer.fetches.copy_part(*peer.lane, fetched);
    if (!news) break;
    moved = true;
    if (news->event == Fetches::Event::begun) answer(peer, news->number, Verdict::copying);
    if (news->event == Fetches::Event::impossible) answer(peer, news->number, Verdict::go);
    if (news->event != Fetches::Event::complete) continue;
    answer(peer, news->number, Verdict::taken);
    const auto known = peer.receiving.find(news->number);
    finish(*known->second.parcel);
    peer.receiving.erase(known);
  }
  return moved;
}

/// A receive meets the first message that has come for it, or waits for one.
void Mailbox::match(Parcel& parcel) {
  for (const int rank : parcel.peers) {
    Peer& peer = peers_.at(rank);
    if (!peer.settled()) peer.fresh = peer.arrived.size();
    const auto settled = std::prev(peer.arrived.end(), static_cast<std::ptrdiff_t>(peer.fresh));
    const auto found = std::find_if(peer.arrived.begin(), settled,
                                    [&](const Arrived& one) { return fits(parcel, rank, one.message); });
    if (found != settled) return meet(rank, peer, parcel, found);
  }
  posted_.emplace(parcel.number, &parcel);
}

bool Mailbox::fits(const Parcel& parcel, int rank, const Frame& message) {
  const auto has = [](const std::vector<int>& all, int one) { return std::ranges::find(all, one) != all.end(); };
  return parcel.group == message.group && has(parcel.peers, rank) &&
         (parcel.tags.empty() || has(parcel.tags, message.tag));
}

Parcel* Mailbox::receive_for(int rank, const Frame& message) {
  const auto found = std::ranges::find_if(posted_, [&](const auto& one) { return fits(*one.second, rank, message); });
  return found == posted_.end() ? nullptr : found->second;
}

void Mailbox::hear_answer(int rank, Peer& peer) {
  const Frame& answer = peer.frame;
  if (const auto bytes = peer.eager_bytes.find(answer.number); bytes != peer.eager_bytes.end()) {
    peer.eager_sum -= bytes->second;
    peer.eager_bytes.erase(bytes);
  }
  const auto known = peer.offered.find(answer.number);
  if (known == peer.offered.end()) return;  // withdrawn
  Parcel& parcel = *known->second;
  parcel.matched = true;
  if (answer.verdict == Verdict::copying) return;
  peer.offered.erase(known);
  switch (answer.verdict) {
    case Verdict::go:
      if (parcel.bytes > 0 && !parcel.elsewhere) return peer.outgoing.send(parcel);
      put(peer, {.kind = Kind::data, .number = parcel.number});
      break;
    default: break;
    case Verdict::refused: parcel.failure = difference(rank_, rank, frame_of(parcel), answer);
  }
  finish(parcel);
}

/// A send was withdrawn. If its message has met a receive, whose data will not come, that waits for another one.
void Mailbox::hear_cancel(Peer& peer) {
  const std::uint64_t number = peer.frame.number;
  peer.fetches.hear_withdrawal();
  peer.fetches.drop(number);
  const auto arrived =
      std::ranges::find_if(peer.arrived, [&](const Arrived& one) { return one.message.number == number; });
  if (arrived != peer.arrived.end()) {
    const auto behind = static_cast<std::size_t>(std::distance(arrived, peer.arrived.end()));
    if (behind <= peer.fresh) --peer.fresh;
    peer.arrived.erase(arrived);
    return answer(peer, number, Verdict::taken);
  }
  const auto known = peer.receiving.find(number);
  if (known == peer.receiving.end()) return;
  Parcel* const parcel = known->second.parcel;
  peer.receiving.erase(known);
  if (!parcel) return;
  parcel->matched = false;
  match(*parcel);
}

}  // namespace kolo
