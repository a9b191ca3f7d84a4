#!/usr/bin/env bash
# monitor_test.sh ZERO: what the blocks tensorboard and csv_monitor ask for, read by parsers of their own, and by TensorBoard where Python
# has it; a resumed run goes on in them; what cannot be written is told, and ends nothing.
source "$(dirname "$0")/lib.sh" "$1"
python=$(getent passwd "$(id -u)" | cut -d: -f6)/.cache/zero-python/bin/python
[[ -x $python ]] || python=python3
text >text
monitors=', "tensorboard": {"enabled": true}, "csv_monitor": {"enabled": true, "output_path": "tables", "job_name": "small"}'
config 2 "$monitors" >c.json

# read_all DIRECTORY...: tag, samples and value of all events, in the order of the files
read_all() {
    "$python" - "$@" <<'END'
import glob, struct, sys

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's polynomial

def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

def fields(data):
    at = 0
    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
    while at < len(data):
        key = varint()
        kind = key & 7
        size = {0: 0, 1: 8, 5: 4}.get(kind)
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = varint() if kind == 2 else size
        yield key >> 3, data[at:at + size]
        at += size

for directory in sys.argv[1:]:
    for name in sorted(glob.glob(directory + "/events.out.tfevents.*")):
        data, at, first = open(name, "rb").read(), 0, True
        while at < len(data):
            length, check = struct.unpack_from("<QI", data, at)
            assert check == masked(data[at:at + 8])
            event = data[at + 12:at + 12 + length]
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(event)
            at += 16 + length
            f = dict(fields(event))
            if first:
                assert f[3] == b"brain.Event:2", f
                first = False
                continue
            for _, value in fields(f[5]):
                v = dict(fields(value))
                print(v[1].decode(), f[2], "%.6g" % struct.unpack("<f", v[2])[0])
END
}

# By the run's own lines: step 1 has trained 2 samples.
expect 0 "$zero" train c.json --data text --set data.eval=0.1 --set ema.decay=0.5 --steps 3 --eval-every 3 --ema --save-every 2 --run run
events=run/tensorboard/DeepSpeedJobName
read_all "$events" >events || fail "the event file does not follow its format"
"$python" - run/metrics.jsonl events tables/small <<'END' || fail "events, tables and metrics.jsonl differ"
import csv, json, sys
steps = [json.loads(line) for line in open(sys.argv[1])]
events = {(tag, int(step)): float(value) for tag, step, value in map(str.split, open(sys.argv[2]))}
names = {"train_loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "tokens_per_s": "tokens_per_s", "eval_loss": "eval_loss",
         "eval_loss_ema": "eval_loss_ema"}
seen = 0
for tag, name in names.items():
    with open(f"{sys.argv[3]}/Train_Samples_{tag}.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", tag], rows[0]
    expected = [(2 * s["step"], s[name]) for s in steps if name in s]
    assert len(rows) == len(expected) + 1, (tag, rows)
    for (samples, value), row in zip(expected, rows[1:]):
        assert int(row[0]) == samples and abs(float(row[1]) - value) <= 1e-8 * abs(value), (tag, row)
        assert abs(events["Train/Samples/" + tag, samples] - value) <= 1e-5 * abs(value), (tag, samples)
        seen += 1
assert seen == 14 and len(events) == 14, (seen, len(events))
END
if "$python" -c 'import tensorboard' 2>/dev/null; then
    "$python" - "$events" <<'END' || fail "TensorBoard reads other scalars"
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
assert len(events.Tags()["scalars"]) == 6, events.Tags()
assert [e.step for e in events.Scalars("Train/Samples/train_loss")] == [2, 4, 6]
END
fi

# A run that goes on appends, also to the tables of another run in the same output_path; one that begins again replaces its tables.
expect 0 "$zero" train c.json --data text --steps 5 --run run --resume
[[ $(grep -c . tables/small/Train_Samples_train_loss.csv) == 6 ]] || fail "resumed: $(cat tables/small/Train_Samples_train_loss.csv)"
[[ $(read_all "$events" | grep -c train_loss) == 5 ]] || fail "resumed: $(read_all "$events")"
expect 0 "$zero" train c.json --data text --steps 1 --run another
[[ $(grep -c . tables/small/Train_Samples_train_loss.csv) == 7 ]] || fail "another run: $(cat tables/small/Train_Samples_train_loss.csv)"
expect 0 "$zero" train c.json --data text --steps 2 --run run --overwrite
[[ $(grep -c . tables/small/Train_Samples_train_loss.csv) == 3 ]] || fail "anew: $(cat tables/small/Train_Samples_train_loss.csv)"
[[ $(read_all "$events" | grep -c train_loss) == 2 ]] || fail "anew: $(read_all "$events")"
# Event files in an output_path may be another program's.
config 2 ', "tensorboard": {"enabled": true, "output_path": "boards", "job_name": "shared"}' >shared.json
mkdir -p boards/shared && echo other >boards/shared/events.out.tfevents.1.other.1.0
expect 0 "$zero" train shared.json --data text --steps 1 --run run --overwrite
[[ $(cat boards/shared/events.out.tfevents.1.other.1.0) == other ]] || fail "another program's event file is gone"

# A directory that cannot be made.
echo >occupied
config 2 ', "csv_monitor": {"enabled": true, "output_path": "occupied"}' >c.json
expect 1 "$zero" train c.json --data text --steps 1 --run other
says err "csv_monitor.output_path: cannot write in occupied/DeepSpeedJobName/: Not a directory"

# Weights & Biases and Comet are not here, and the run says so.
config 2 ', "wandb": {"enabled": true, "project": "x"}, "comet": {"enabled": true}' >c.json
expect 0 "$zero" train c.json --data text --steps 1 --run third
says out "without effect here (zero config --changed says why): wandb.enabled, wandb.project, comet.enabled"
expect 0 "$zero" config c.json --changed
grep -q "wandb.enabled.*a run writes metrics.jsonl instead" out || fail "zero config does not say what is written in place of wandb"
finish
