"""Two ranks: copies of this process, which has imported all that they need."""

import os
import signal
import socket
import sys
import tempfile
import traceback
import unittest

HANGS_S = 1200  # below Bazel's limit for a test


def reserved():
    """A socket at a port of this host that the kernel gives to no other program: rank 0 may listen there, beside it."""
    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    place.bind(("127.0.0.1", 0))
    return place


def without_zero():
    """For a copy of a process: its next import of zero is the first one."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "zero"]:
        del sys.modules[name]


class Rank:
    """A copy of this process. One that hangs ends by itself, so that the test says what it has written."""

    def __init__(self, case, rank, **environment):
        sys.stdout.flush()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.run(case, write, environment | {"RANK": str(rank)})
        os.close(write)
        self.lines = os.fdopen(read)

    def run(self, case, write, environment):
        signal.alarm(HANGS_S)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.environ |= environment
        try:
            case()
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code)

    def output(self):
        text = self.lines.read()
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.lines.close()
        return text


class TwoRanks(unittest.TestCase):
    def start(self, case):
        """Both ranks, without a launcher."""
        place = reserved()
        self.addCleanup(place.close)
        self.time_file = os.path.join(tempfile.mkdtemp(), "killed")
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(place.getsockname()[1]), "SECRET": "a secret of this test"}
        return [Rank(case, rank, KILLED=self.time_file, **told) for rank in (0, 1)]

    def assertBoth(self, case):
        """Both ranks end without an exception."""
        ranks = self.start(case)
        outputs = [rank.output() for rank in ranks]
        self.assertEqual([rank.code for rank in ranks], [0, 0], "\n".join(outputs))
