#!/usr/bin/env python3
"""The simulator finds bugs: puts each of a list of defects that the runtime has had, or could have, back into a copy of the sources, and
runs the simulated programs until they fail.

usage: planted_test.py [FOLDER [NAME...]]

FOLDER receives the copy and its build, and may be used again. NAME: only these. Without a folder it only looks whether each defect has its
place in the sources. Ends with 1 if one has not, or is not found.
"""
import os, re, shutil, subprocess, sys

root = os.path.realpath(os.path.join(os.path.dirname(__file__), '../../..'))

# Name; file of runtime/; what is there; what is put in its place; which tests are to find it: of simulator_test, if no other program is named.
PARTS = 'Part/Simulator*'
DEFECTS = [
    ('a driver leaves work behind and wakes nobody', 'coordinator/driver.cc',
     'const bool more = !glances && (stop_ || cycle_.needs_attention() || background_sleeps_too_long());',
     'const bool more = !glances && stop_;', 'Background*'),
    ('the background thread counts on a driver that has left', 'coordinator/driver.h',
     'if (background_relies_on_drivers_) control_->doorbell().ring();', '', PARTS),
    ('a thread that sleeps with the role keeps it', 'coordinator/driver.cc',
     'moved || wanted_ != 0 || doorbell.sleep', 'moved || doorbell.sleep', 'Leaving*'),
    ('a thread that drives keeps the role from whoever cannot wait', 'coordinator/driver.cc',
     '!reached && wanted_ == 0;', '!reached;', 'Leaving*'),
    ('a thread that announces does not ring for what is late', 'coordinator/driver.cc',
     'more = cycle_.announce_and_send(now) || background_sleeps_too_long();', 'more = cycle_.announce_and_send(now);', 'Background*'),
    ('a thread that announces wakes nobody for what must be run', 'coordinator/driver.cc',
     'more = cycle_.announce_and_send(now) || background_sleeps_too_long();', 'more = (cycle_.announce_and_send(now), background_sleeps_too_long());', 'Background*'),
    ('what was submitted behind an exception is lost', 'coordinator/intake.cc',
     'const PendingQueue::Item& item = drained_[announced_++];', 'const PendingQueue::Item item = drained_[announced_++]; const auto all = drained_.size(); '
     'struct Lose { std::size_t& at; std::size_t all; bool& given; ~Lose() { if (std::uncaught_exceptions()) at = all; } } lose{announced_, all, begun_};', PARTS),
    ('what an exception has lost of a group is never complete', 'coordinator/cycle.cc',
     'complete_all_of(group, *broken);', '', PARTS),
    ('a bucket that was complete before another one threw is stepped again', 'coordinator/executor.cc',
     'any = running.complete = true;', 'any = true;', PARTS),
    ('a group is used before its backends know each other', 'coordinator/group_changes.cc',
     'group.executor.introduce(group.opening->pending.of_ranks);', '', PARTS),
    ('members are not told that there is a group', 'coordinator/cycle.cc', 'if (group->untold()) {', 'if (false) {', PARTS),
    ('members are not told that a group opens', 'coordinator/cycle.cc', 'if (current_) changes_.open(*current_);', '', PARTS),
    ('what waits for a group to open is not counted in time', 'coordinator/intake.cc', 'deadlines_.add(*item.submission);\n  changes_', 'changes_', 'Background*'),
    ('a negotiation that was left half-way goes on', 'coordinator/cycle.cc',
     'if (!again && !stepping) group->negotiator.retire(failure, queue_.closed(group->info->key()));', 'if (!again && !stepping) group->negotiator.fail_group(failure);',
     PARTS),
    ('half a message is sent', 'negotiation/tree_link.h', 'to.all_or_nothing([&] { encode(to, message); });', 'encode(to, message);', PARTS),
    ('pairs outlive a world that is broken', 'coordinator/cycle.cc', 'pairs_.end_with_world();', '', 'Leaving*'),
    ('sends to a rank that joins wait for ever', 'coordinator/cycle.cc',
     'if (joined_before || group.was_joined) again_ |= pairs_.withdraw_refused(group);', '', PARTS),
    ('the library is not called any more when all is complete here', 'coordinator/cycle.cc',
     'if (trailing_.due(now)) groups_.world()', 'if (false) groups_.world()', PARTS + ':Leaving*'),
    ('a session ends while others need its library', 'coordinator/cycle.cc', 'return may && !settling_;', 'return may;', PARTS + ':Leaving*'),
    ('a rank leaves a world that has failed, and hands on nothing to those who wait', 'coordinator/cycle.cc',
     '(group.is_pair() || group.negotiator.may_leave())', '(group.is_pair() || groups_.world().negotiator.broken() || group.negotiator.may_leave())', 'Leaving*'),
    ('whoever leaves does so in a cycle of which nobody hears', 'coordinator/cycle.cc',
     'return leave_when_ready() || moved;', 'return (leave_when_ready(), moved);', PARTS + ':Leaving*'),
    ('what is complete is not decided before a rank leaves', 'negotiation/negotiator.cc', 'if (!message.abandoned && !retired_) {', 'if (false) {', PARTS + ':Leaving*'),
    ('a rank joins while it has operations in flight', 'negotiation/negotiator.cc',
     '!outstanding_.empty() || !decisions_.to_allocate.empty()', '!decisions_.to_allocate.empty()', PARTS),
    ('ranks that have joined are excused from a vote', 'negotiation/ready_table.cc',
     '(arrivals.vote || !excused_[child])', '!excused_[child]', PARTS),
    ('an operation that failed while a rank had not come runs when it does', 'negotiation/negotiator.cc',
     'late_.fail_next(message.name, message.failure);', '{}', PARTS),
    ('a retired bucket is not announced anew', 'negotiation/negotiator.cc',
     'if (outstanding_.announced(bucket)) up(0, ready(bucket));', '', PARTS),
    ('what one rank waits for is never split from its bucket', 'negotiation/negotiator.cc',
     'if (auto split = outstanding_.split_for(*submission, plan_)) {', 'if (auto split = std::optional<SplitBucket>()) {', PARTS),
    ('names that were forgotten are not announced in full', 'negotiation/negotiator.cc',
     'announce_anew(here);', '', PARTS),
    ('names that ranks have announced in different ways are not reported', 'negotiation/negotiator.h',
     'for (const Conflict& conflict : conflicts) up(0, conflict);', '', PARTS),
    ('what a rank cannot run is announced as if it could', 'negotiation/outstanding.cc',
     'if (!as_before || mine.objection)', 'if (!as_before)', PARTS),
    ('nobody wakes to act on a rank that is gone', 'coordinator/cycle.h', 'trailing_.next(), losses_.next()', 'trailing_.next()', 'Killed*'),
    ('a rank that leaves at once has lost nobody', 'coordinator/losses.cc', 'lost_ = gone_.size();', '{}', 'Killed*'),
    ('what a backend says when another rank has failed is taken for the reason', 'coordinator/cycle.cc',
     'if (stepping && concerned && failure.code == ErrorCode::aborted)', 'if (false)', 'Killed*'),
    ('memory that is let go dies at once', 'coordinator/continuations.cc',
     'follow(submission, [kept = std::move(keep_alive)] {});', 'keep_alive.reset();', PARTS),
    ('a function is lost that follows what is done', 'coordinator/continuations.cc',
     'if (!queue_.listen(submission, listener)) callbacks_.post(*tasks);', '(void)queue_.listen(submission, listener);', PARTS),
    ('what is done tells the first only of those that listen', 'coordinator/pending_queue.cc',
     'std::exchange(submission.queued.listeners, {})) (*listener)();', 'std::exchange(submission.queued.listeners, {})) { (*listener)(); break; }', PARTS),
    ('who listens late is told before others', 'coordinator/pending_queue.cc', '.done.expect() && !others) return false;', '.done.expect() && (others || !others)) return false;', 'Functions*'),
    ('wait_any() names the first of its handles', 'session/handle.cc',
     'return static_cast<std::size_t>(done - listened.begin());', 'return (void)done, std::size_t{0};', PARTS),
    ('ranks do not compare what they have called in order', '../ops/local/backend.cc',
     'if (board_->token(number_, rank) != bucket_.token) throw_other_token();', '', PARTS),
    ('what ranks have called in order begins though they have not met', 'coordinator/executor.cc', 'if (!running.meets) return true;',
     'if (running.meets) make_buckets(running, {}); running.meets = false; return true;', PARTS),
    ('who has left is waited for in order', 'coordinator/groups.cc',
     'if (negotiator.over() && executor.oldest()) negotiator.end_if_left(*executor.oldest());', '', PARTS + ':Leaving*'),
    ('what waits for a group to open is lost when it does', 'coordinator/intake.cc', 'take_each(group.held, [&]',
     'auto held = std::exchange(group.held, {}); if (held.size() > 1) held.pop_back(); take_each(held, [&]', PARTS),
    ('an adasum in stages is not compared', 'coordinator/rendezvous.cc', ' && runner->supports(request.signature);', ';', PARTS),
    ('an old answer counts for a new question', 'negotiation/census.cc', ' || found->second.question != message.question) return;', ') return;', 'negotiation_test CensusTest.*'),
    ('a send that is withdrawn does not say so', '../ops/mailbox.cc', 'put(peer, {.kind = Kind::cancel, .number = parcel.number});', '', PARTS),
    ('a fusion threshold changes while tensors wait', 'negotiation/plan_learner.cc',
     'return one->pending.agreed || one->completion.done;', 'return one != nullptr;', 'negotiation_test PlanLearnerTest.*'),
    ('a thread that announces forgets who has passed by', 'coordinator/driver.cc', 'if (more || passed_by) wake', 'if (more) wake', 'Background*:Leaving*:' + PARTS),
    ('who leaves the role does not look for who has passed by', 'coordinator/role.h', '    held.unlock();\n    return passed_by_;', '    held.unlock();\n    return false;', 'Background*:Leaving*:' + PARTS),
    ('an abandoned group ends on one rank only', 'coordinator/intake.cc',
     'group.negotiator.cut_off(*request.ends);', 'group.negotiator.end(*request.ends);', PARTS),
    ('ranks answer each other about a group that is gone', 'coordinator/group_changes.cc', 'if (removed && !opens) return nullptr;', '', PARTS),
    ('a refusal loses its text', 'session/session.cc', 'request.invalid = why;', 'request.invalid = Failure{why.code, "no"};', PARTS),
    ('a second close() does not wait for the first', 'coordinator/driver.cc', 'return left_.wait();  // another thread closes', 'return;', 'Leaving*'),
]


def run(command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', **more)


def main():
    lost = [name for name, file, what, *_ in DEFECTS if open(os.path.join(root, 'runtime', file)).read().count(what) != 1]
    for name in lost:
        print(f'{name}: has no place')
    if lost or len(sys.argv) < 2:
        return 1 if lost else 0
    folder, names = os.path.realpath(sys.argv[1]), sys.argv[2:]
    copy, build = os.path.join(folder, 'sources'), os.path.join(folder, 'build')
    shutil.rmtree(copy, ignore_errors=True)
    files = subprocess.run(['git', '-C', root, 'ls-files', '-z'], check=True, stdout=subprocess.PIPE, text=True).stdout
    for file in filter(None, files.split('\0')):
        if os.path.exists(os.path.join(root, file)):
            os.makedirs(os.path.dirname(os.path.join(copy, file)), exist_ok=True)
            shutil.copy(os.path.join(root, file), os.path.join(copy, file))

    def make():
        return run(['cmake', '--build', build, '--target', 'simulator_test', 'negotiation_test', '-j', str(os.cpu_count() or 1)])

    def play(tests):
        program, tests = tests.split() if ' ' in tests else ('simulator_test', tests)
        try:
            return run([os.path.join(build, 'tests', program), f'--gtest_filter={tests}', '--gtest_break_on_failure'], timeout=900).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    configured = run(['cmake', '-S', copy, '-B', build, '-DCMAKE_BUILD_TYPE=Release'])
    made = make() if configured.returncode == 0 else configured
    if made.returncode != 0 or not play(PARTS + ':Leaving*:Background*:Functions*'):
        print(made.stdout[-2000:] + '\nthe sources as they are do not pass')
        return 1
    missed = 0
    for name, file, what, instead, tests in DEFECTS:
        if names and name not in names:
            continue
        path = os.path.join(copy, 'runtime', file)
        with open(path) as opened:
            before = opened.read()
        verdict = 'is found'
        with open(path, 'w') as opened:
            opened.write(before.replace(what, instead))
        made = make()
        if made.returncode != 0:
            verdict = 'CANNOT BE BUILT: ' + re.sub(r'\s+', ' ', '; '.join(re.findall(r'error: .*', made.stdout))[:300])
        elif play(tests):
            verdict = 'IS MISSED'
        with open(path, 'w') as opened:
            opened.write(before)
        missed += verdict != 'is found'
        print(f'{name}: {verdict}', flush=True)
    print(f'{missed} of {len(DEFECTS)} defects are not found' if missed else 'every defect is found')
    return 1 if missed else 0


if __name__ == '__main__':
    sys.exit(main())
