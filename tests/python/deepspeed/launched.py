"""What a launcher gives a program."""

import argparse
import json
import os
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--word")
args = parser.parse_args()
if args.word == "bad":
    if args.local_rank == 1:
        print("rank 1 ends", flush=True)
        sys.exit(3)
    time.sleep(100)
place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
size = int(os.environ["WORLD_SIZE"])
sys.stdout.write("RESULT " + json.dumps({os.environ["RANK"]: [size, args.local_rank, args.word, place]}) + "\n")  # in one piece: ranks share the pipe
