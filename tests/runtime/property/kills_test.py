#!/usr/bin/env python3
"""Random programs whose ranks are processes, while one is killed or stopped, or the link between two hosts is cut.

usage: kills_test.py ROUNDS FIRST_SEED PROPERTY_JOB ON_HOSTS [MPIEXEC]

Each round draws from its seed where the ranks run (2 to 4 on this host, 2 + 2 on two), what happens, to which rank and when. Every
process must end soon after the deadline, and some line must name the rank; of a link the other host's ranks, or say that the operation
that was under way still runs. Prints what a round did if that was not so. Rounds on two hosts are skipped, and counted, where there can
be none.
"""
import collections, os, random, re, signal, subprocess, sys, tempfile, threading, time

DEADLINE = 3  # seconds: KOLO_STALL_ABORT_SECONDS of the jobs
GRACE = 25  # seconds after that in which everything must be gone: a program that has failed waits 20 for the others
at_once = 3 * (os.cpu_count() or 1)  # they mostly wait


def fields_of(pid):
    """Parent, and process number where it runs; None if it has ended."""
    try:
        with open(f'/proc/{pid}/status') as status:
            lines = dict(line.rstrip('\n').split(':\t', 1) for line in status if ':\t' in line)
        if lines['State'].startswith('Z'):
            return None
        return int(lines['PPid']), int(lines['NSpid'].split()[-1])
    except (OSError, KeyError):
        return None


def processes_with(mark):
    """Of those whose command line holds the mark: process number here -> command line."""
    found = {}
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/cmdline') as file:
                words = file.read().split('\0')
        except OSError:
            continue
        if any(mark in word for word in words):
            found[int(pid)] = words
    return found


class Round:
    def __init__(self, seed, program, on_hosts, mpiexec, hosts_allowed):
        draw = random.Random(seed)
        self.seed = seed
        self.hosts = draw.random() < 0.4
        self.ranks = 4 if self.hosts else draw.choice([2, 3, 4])
        self.kind = draw.choice(['kill', 'stop'] + ['cut', 'cut'] * self.hosts)
        self.victim = draw.randrange(self.ranks)
        self.moment = draw.uniform(0, 1.5)
        self.first_seed = draw.randrange(1, 1_000_000)
        self.skipped = self.hosts and not hosts_allowed
        self.program, self.on_hosts, self.mpiexec = program, on_hosts, mpiexec
        self.problem = None
        self.lines = []

    def describe(self):
        where = '2 + 2 ranks on two hosts' if self.hosts else f'{self.ranks} ranks'
        what = 'the link is cut' if self.kind == 'cut' else f'rank {self.victim} gets a {self.kind}'
        return f'round {self.seed}: {where}, {what} after {self.moment:.2f} s'

    def run(self):
        with tempfile.TemporaryDirectory(prefix='kolo-kills-') as folder:
            self.marks = os.path.join(folder, 'marks')
            job = [self.program, self.marks, str(self.first_seed), '1000', str(DEADLINE)]
            # mpirun is to leave it to the ranks to find out that one is dead.
            words = ['--enable-recovery'] if self.kind == 'kill' else []
            if self.hosts:
                command = [self.on_hosts, '2,2', *words, *job]
            else:
                command = [self.mpiexec, '--oversubscribe', '--bind-to', 'none', *words, '-np', str(self.ranks), *job]
            environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1', MPIEXEC=self.mpiexec)
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            text=True, errors='replace', env=environment, start_new_session=True)
            reader = threading.Thread(target=self.read)
            reader.start()
            try:
                self.problem = self.act()
            finally:
                self.end()
                reader.join()
        return self.problem

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip('\n'))

    def pids(self):
        """Of each rank, by the number that it has in its own namespace."""
        return {int(m[1]): int(m[2]) for line in list(self.lines) for m in [re.search(r'rank (\d+) is pid (\d+)', line)] if m}

    def ranks_here(self):
        """Of each rank that lives, the process number here."""
        inner = {pid: rank for rank, pid in self.pids().items()}
        here = {}
        for pid, words in processes_with(self.marks).items():
            fields = fields_of(pid)
            if fields and words[0] == self.program and fields[1] in inner:
                here[inner[fields[1]]] = pid
        return here

    def act(self):
        for _ in range(300):
            if len(self.pids()) == self.ranks or self.process.poll() is not None:
                break
            time.sleep(0.1)
        ranks = self.ranks_here()
        if len(ranks) != self.ranks:
            return 'the job did not start'
        time.sleep(self.moment)
        if self.kind == 'cut':
            if not self.cut():
                return 'the link could not be cut'
        else:
            os.kill(ranks[self.victim], signal.SIGKILL if self.kind == 'kill' else signal.SIGSTOP)
        happened = time.monotonic()
        while time.monotonic() < happened + DEADLINE + GRACE:
            left = self.ranks_here()
            if self.kind == 'stop':
                left.pop(self.victim, None)  # ended by whoever started it, if that still can
            if not left:
                time.sleep(0.2)
                return self.judge()
            time.sleep(0.1)
        return f'ranks {sorted(left)} still live {DEADLINE + GRACE} s later'

    def cut(self):
        """Takes the second host's port at the switch down."""
        own = os.readlink('/proc/self/ns/net')
        for pid, words in processes_with(self.marks).items():
            if self.on_hosts not in words and not any(word.endswith('on_hosts.sh') for word in words):
                continue
            try:
                if os.readlink(f'/proc/{pid}/ns/net') == own:
                    continue
            except OSError:
                continue
            done = subprocess.run(['nsenter', '-t', str(pid), '-n', 'ip', 'link', 'set', 'port1', 'down'],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if done.returncode == 0:
                return True
        return False

    def judge(self):
        text = '\n'.join(self.lines)
        if 'problem:' in text:
            return 'an operation went wrong before'
        named = set()
        for line in self.lines:
            for clause in re.findall(r'(?:not submitted by|not known of|no word from|no answer from|not there yet:) ([^;]*)', line):
                clause = re.sub(r'\([^)]*\)', '', clause)  # who that is
                for first, last in re.findall(r'(\d+)(?:-(\d+))?', clause):
                    named.update(range(int(first), int(last or first) + 1))
            named.update(int(rank) for rank in re.findall(r'rank (\d+) \(host [^)]*\) is gone', line))
        expected = {2, 3} if self.kind == 'cut' else {self.victim}  # of two hosts, each reports the other's
        if named & expected:
            return None
        if self.kind == 'cut' and '; running; ending the job' in text:
            return None
        if self.kind == 'cut' and 'making the session has waited' in text:
            return None  # ranks look for each other in /proc then, which these two hosts have in common
        if 'PMIx_server' in text or 'pmix_server' in text:
            return None  # Open MPI's own mpirun crashes sometimes when it ends a job, and loses what was said
        if "another rank's program has ended" in text:
            return None  # the programs wait for each other by the test's marks, too
        return f'nobody named {" or ".join(f"rank {rank}" for rank in sorted(expected))}'

    def end(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except OSError:
            pass
        for pid in processes_with(self.marks):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait()


def main():
    if len(sys.argv) < 5:
        print(__doc__)
        return 2
    rounds, first = int(sys.argv[1]), int(sys.argv[2])
    program, on_hosts = map(os.path.realpath, sys.argv[3:5])
    mpiexec = sys.argv[5] if len(sys.argv) > 5 else 'mpirun'
    hosts_allowed = subprocess.run([on_hosts, '1', 'true'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    waiting = [Round(first + i, program, on_hosts, mpiexec, hosts_allowed) for i in range(rounds)]
    lock, done, bad = threading.Lock(), collections.Counter(), []

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                one = waiting.pop(0)
            if one.skipped:
                problem = None
            else:
                problem = one.run()
            with lock:
                done['skipped' if one.skipped else one.kind] += 1
                if problem:
                    bad.append(one.seed)
                    print(f'FAILED: {one.describe()}: {problem}\n  ' + '\n  '.join(one.lines[-40:]), flush=True)

    workers = [threading.Thread(target=work) for _ in range(at_once)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f'{rounds} rounds: ' + ', '.join(f'{count} x {kind}' for kind, count in sorted(done.items())) + f'; {len(bad)} failed {bad[:20]}')
    return 1 if bad else 0


if __name__ == '__main__':
    sys.exit(main())
