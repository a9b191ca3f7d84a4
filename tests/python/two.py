"""Two ranks: copies of this process, which has imported all that they need."""

import os
import signal
import socket
import sys
import tempfile
import traceback
import unittest


class Rank:
    """A copy of this process. It ends by itself after some minutes."""

    def __init__(self, case, rank, **environment):
        sys.stdout.flush()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.run(case, write, environment | {"RANK": str(rank)})
        os.close(write)
        self.lines = os.fdopen(read)

    def run(self, case, write, environment):
        signal.alarm(280)
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
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        self.time_file = os.path.join(tempfile.mkdtemp(), "killed")
        place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SECRET": "a secret of this test"}
        return [Rank(case, rank, KILLED=self.time_file, **place) for rank in (0, 1)]

    def assertBoth(self, case):
        """Both ranks end without an exception."""
        ranks = self.start(case)
        outputs = [rank.output() for rank in ranks]
        self.assertEqual([rank.code for rank in ranks], [0, 0], "\n".join(outputs))
