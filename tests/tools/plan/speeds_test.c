/* By hand: what calls and transfers take. */
#include "tools/plan/machine/speeds.h"

#include "tests/check.h"

/* 1 GB/s inside a node of 4, 100 MB/s between; 3 us and 7 us; 10 MB/s from the host. */
static void collectives_take_what_links_need(void) {
    struct speeds s = {.inside = {1000000000, 500000000, 3000},
                       .between = {100000000, 50000000, 7000},
                       .bus_bytes_per_s = 10000000,
                       .node_ranks = 4};
    const uint32_t node[] = {0, 1, 2, 3}, two[] = {0, 1, 2, 3, 4, 5, 6, 7}, copies[] = {1, 5, 9, 13};
    CHECK_INT(speeds_nodes(&s, node, 4), 1);
    CHECK_INT(speeds_nodes(&s, two, 8), 2);
    CHECK_INT(speeds_nodes(&s, copies, 4), 4);
    const struct comm_sent none = {0}, ring = {.ring = 1000}, straight = {.straight = 700},
                           levels = {.inside = 600, .between = 400};
    struct speeds_call call = speeds_collective(&s, 1, 1, &none, 0, false);
    CHECK_INT(call.inside_ns + call.between_ns, 0);
    call = speeds_collective(&s, 1, 1, &none, 100, false); /* to the device all the same */
    CHECK_INT(call.inside_ns, 10000);
    call = speeds_collective(&s, 4, 1, &ring, 0, false);
    CHECK_INT(call.inside_ns, 2 * 3000 + 1000);
    CHECK_INT(call.between_ns, 0);
    CHECK_INT(speeds_collective(&s, 4, 1, &ring, 0, true).inside_ns, 2 * 3000 + 2000);
    call = speeds_collective(&s, 8, 2, &ring, 0, false);
    CHECK_INT(call.inside_ns, 2 * 3000 + 7000 + 1000);
    CHECK_INT(call.between_ns, 2 * 3000 + 7000 + 2500); /* by four ways out of a node */
    call = speeds_collective(&s, 8, 2, &ring, 100, false);
    CHECK_INT(call.between_ns, 2 * 3000 + 7000 + 2500 + 10000);
    call = speeds_collective(&s, 4, 4, &ring, 0, true);
    CHECK_INT(call.inside_ns, 0);
    CHECK_INT(call.between_ns, 2 * 7000 + 20000); /* by one */
    call = speeds_collective(&s, 8, 2, &straight, 0, false);
    CHECK_INT(call.inside_ns, 2 * 3000 + 7000 + 300);
    CHECK_INT(call.between_ns, 2 * 3000 + 7000 + 4000); /* to four of seven, by its own way */
    CHECK(!call.in_turn);
    call = speeds_collective(&s, 8, 2, &levels, 0, true);
    CHECK_INT(call.inside_ns, 2 * 3000 + 1200);
    CHECK_INT(call.between_ns, 7000 + 8000);
    CHECK(call.in_turn);
    CHECK_INT(speeds_ns(UINT64_MAX / 1000, 1000000000), UINT64_MAX / 1000);
    CHECK_INT(speeds_ns(1, 1000000000000), 1); /* rounded up */
}

/* Reads at 1 GB/s, writes at 500 MB/s, both together at 1.2 GB/s. */
static void ways_of_a_drive_overlap(void) {
    struct speeds s = {.drive_read_bytes_per_s = 1000000000,
                       .drive_write_bytes_per_s = 500000000,
                       .drive_mixed_bytes_per_s = 1200000000,
                       .drive_latency_ns = 7};
    struct speeds_turns t = {0};
    CHECK_INT(speeds_transfer(&s, &t, 0, false, 1200), 1200 + 7);
    CHECK_INT(speeds_transfer(&s, &t, 0, true, 600), 1500 + 7); /* both: 1200 and 600 at 1.2 GB/s */
    CHECK_INT(speeds_transfer(&s, &t, 0, true, 600), 2400 + 7); /* after the other write */
    CHECK_INT(speeds_transfer(&s, &t, 5000, false, 100), 5100 + 7);
    s.drive_mixed_bytes_per_s = 600000000; /* one way alone is faster */
    t = (struct speeds_turns){0};
    CHECK_INT(speeds_transfer(&s, &t, 0, false, 600), 600 + 7);
    CHECK_INT(speeds_transfer(&s, &t, 0, true, 600), 1600 + 7);
}

int main(void) {
    collectives_take_what_links_need();
    ways_of_a_drive_overlap();
    return check_end();
}
