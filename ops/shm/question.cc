#include "ops/shm/question.h"

namespace kolo {
namespace {

void show(ShmTransfer& transfer) {
  transfer.job().question->show(transfer.job(), transfer.slot(transfer.rank()));
}

void read(ShmTransfer& transfer) {
  transfer.job().question->read(transfer.job(), [&](int rank) { return transfer.slot(rank); });
}

}  // namespace

constinit const ShmMethod shm_ask{show, nullptr, read};

}  // namespace kolo
