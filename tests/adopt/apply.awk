# Applies a unified diff as `patch` does, which a build machine may lack:  awk -f apply.awk FILE PATCH > PATCHED
function stop(why) { print FILENAME ": line " FNR ": " why > "/dev/stderr"; failed = 1; exit 1 }
function expect() { if (old[++at] != substr($0, 2)) stop("the file has \"" old[at] "\" in line " at) }
NR == FNR { old[NR] = $0; lines = NR; next }
/^(---|\+\+\+) / { next }
/^@@ / { first = substr($2, 2) + 0; while (at + 1 < first) print old[++at]; next }
/^ / { expect(); print old[at] }
/^-/ { expect() }
/^\+/ { print substr($0, 2) }
END { while (!failed && at < lines) print old[++at] }
