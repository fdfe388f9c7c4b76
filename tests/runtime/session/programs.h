#pragma once

#include <string>
#include <vector>

#include "tests/runtime/session/basic_programs.h"
#include "tests/runtime/session/block_programs.h"
#include "tests/runtime/session/collective_programs.h"
#include "tests/runtime/session/group_programs.h"
#include "tests/runtime/session/grouped_programs.h"
#include "tests/runtime/session/join_programs.h"
#include "tests/runtime/session/ordered_programs.h"
#include "tests/runtime/session/pair_programs.h"
#include "tests/runtime/session/tagged_programs.h"
#include "tests/runtime/session/timeout_programs.h"

namespace kolo::testing {

/// What every rank of a session runs, for ranks as threads (programs_test.cc) and as processes (session_ranks_test.cc).
struct SessionProgram {
  const char* name;
  void (*run)(Session&);
  std::int64_t fusion_bytes = 64 << 20;
};

inline const std::vector<SessionProgram> session_programs{
    {"EveryType", reduce_every_type},
    {"ChangingSteps", change_steps},
    {"ChangingStepsInManyBuckets", change_steps, 20'000},
    {"EveryRoot", broadcast_from_every_root},
    {"AdoptedMemory", reduce_adopted_memory},
    {"TrainingInAdoptedMemory", train_in_adopted_memory},
    {"OneNameForAll", reuse_a_name},
    {"WrongArguments", agree_on_wrong_arguments},
    {"Collectives", [](Session& session) { run_collectives(session); }},
    {"CollectivesInGroups", run_collectives_in_groups},
    {"Groups", reduce_in_groups},
    {"GroupsAbandoned", abandon_a_group},
    {"PairsOfRanksInAnyOrder", reduce_in_pairs},
    {"GroupsWithTheLast", reduce_with_the_last},
    {"ALateMemberDelaysItsOwnGroupOnly", wait_in_one_group},
    {"SplitByColor", split_by_color},
    {"MisusedGroups", misuse_groups},
    {"GroupsThatAreRemoved", make_and_remove_groups},
    {"GroupsThatAreRemovedLater", remove_groups_later},
    {"EveryOperationInOrder", every_operation_in_order},
    {"ManyInOrder", many_in_order},
    {"DifferingInOrder", differ_in_order},
    {"MisusedOrderedGroups", misuse_ordered_groups},
    {"LateInOrder", be_late_in_order},
    {"UnevenBlocks", run_uneven_blocks},
    {"Joins", run_joins},
    {"JoinsUnfused", run_joins, 1},
    {"UnevenEpochs", run_uneven_epochs},
    {"JoinInAGroup", join_in_a_group},
    {"JoinBesideObjects", join_beside_objects},
    {"SendAndReceive", run_pairs},
    {"SendByTag", send_by_tag},
    {"ReceiveFromAny", receive_from_any},
    {"Batches", exchange_batches},
    {"RandomMessagesByTag", exchange_at_random},
    {"DifferentTensorsOfATag", differ_by_tag},
    {"WithdrawnByTag", withdraw_by_tag},
    {"Grouped", reduce_grouped},
    {"GroupedOrNotAtAll", refuse_grouped},
    {"RefusedForAll", refuse_for_all},
    {"Objects", exchange_objects},
    {"MonitoredBarriers", keep_monitored_barriers},
    {"TimeOuts", time_out},
    {"FirstBroadcastsAreFused", broadcast_for_the_first_time},
    {"FirstBroadcastsAreFusedInSmallBuckets", broadcast_for_the_first_time, 100'000},
};

inline std::string name_of_program(const ::testing::TestParamInfo<SessionProgram>& info) {
  return info.param.name;
}

}  // namespace kolo::testing
