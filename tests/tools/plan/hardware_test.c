/* Hardware descriptions: the built-in ones are complete, a user's file adds and overrides, what is wrong is named. */
#include "tools/plan/machine/machine.h"

#include <math.h>
#include <stdlib.h>

#include "tests/check.h"

static struct hardware hardware;
static struct zero_error error;

static zero_status add(const char *text) {
    error_clear(&error);
    return hardware_read_text(&hardware, text, strlen(text), "my.json", &error);
}

static zero_status choose(struct hardware_choice choice, struct machine *out) {
    error_clear(&error);
    return hardware_choose(&hardware, &choice, out, &error);
}

static void open_builtin(void) {
    error_clear(&error);
    CHECK_INT(hardware_open(&hardware, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
}

static void every_builtin_device_can_be_chosen(void) {
    open_builtin();
    CHECK(hardware.devices >= 8);
    for (uint32_t i = 0; i < hardware.devices; i++) {
        struct machine m;
        if (!CHECK_INT(choose((struct hardware_choice){.device = hardware.device[i].name}, &m), ZERO_OK))
            fprintf(stderr, "%s\n", error.message);
        CHECK(m.device.flops[DTYPE_F32] > 0 && m.inside.per_s > 0 && m.drive.mixed_per_s > 0);
        CHECK(m.node_ranks >= 1);
    }
}

static void a_vendor_s_figures_become_what_is_reached(void) {
    struct machine m;
    open_builtin();
    choose((struct hardware_choice){.device = "h100-80g"}, &m);
    CHECK_DOUBLE(m.device.flops[DTYPE_BF16], 989.4e12 * 0.53, 1e-12);
    CHECK_DOUBLE(m.device.attention_flops, 335e12, 1e-12);
    CHECK_DOUBLE(m.device.memory_per_s, 3.35e12 * 0.85, 1e-12);
    CHECK_DOUBLE(m.between.per_s, 50e9 * 0.85, 1e-12);
    CHECK_DOUBLE(m.between.reduce_per_s, 50e9 * 0.85, 1e-12);
    CHECK_INT(m.node_ranks, 8);
    CHECK(isnan(m.device.price_per_hour));
    choose((struct hardware_choice){.device = "v100-32g"}, &m);
    CHECK(isnan(m.device.flops[DTYPE_BF16]) && isnan(m.device.attention_flops));
}

/* Without measured rates a GPU does not reach its maker's figures; a CPU's are measured. */
static void a_gpu_without_measured_rates_is_assumed_to_reach_a_share(void) {
    static const char of[] =
        "\"memory\": 8e9, \"memory_per_s\": 1e12, \"fp32_flops\": 1e13, \"bf16_flops\": 1e14, "
        "\"bf16_achieved\": 0.6, \"host\": \"desktop\", \"inside\": \"pcie4\"";
    char text[600], assumption[200] = "";
    struct machine m;
    open_builtin();
    snprintf(text, sizeof text, "{\"devices\": {\"gpu\": {%s}, \"mine\": {%s, \"is_host\": true}}}", of, of);
    CHECK_INT(add(text), ZERO_OK);
    CHECK_INT(choose((struct hardware_choice){.device = "gpu"}, &m), ZERO_OK);
    CHECK_DOUBLE(m.device.flops[DTYPE_F32], 0.5e13, 1e-12);
    CHECK_DOUBLE(m.device.flops[DTYPE_BF16], 0.6e14, 1e-12);
    CHECK_DOUBLE(m.device.memory_per_s, 0.85e12, 1e-12);
    CHECK(machine_assumes(&m, DTYPE_F32, assumption, sizeof assumption));
    CHECK_CONTAINS(
        assumption,
        "gpu has no measured rate of products in fp32: 50 % of its peak are assumed; write fp32_achieved");
    CHECK(!machine_assumes(&m, DTYPE_BF16, assumption, sizeof assumption));
    CHECK_INT(choose((struct hardware_choice){.device = "mine"}, &m), ZERO_OK);
    CHECK_DOUBLE(m.device.flops[DTYPE_F32], 1e13, 1e-12);
    CHECK_DOUBLE(m.device.memory_per_s, 1e12, 1e-12);
    CHECK(!machine_assumes(&m, DTYPE_F32, assumption, sizeof assumption));
}

static void a_file_adds_and_overrides(void) {
    struct machine m;
    open_builtin();
    CHECK_INT(add("{\"devices\": {\"h100-80g\": {\"price_per_hour\": 2.5, \"between\": \"mine\"}},"
                  " \"links\": {\"mine\": {\"per_s\": 1e9, \"reduce_per_s\": 5e8, \"latency_s\": 1e-3}}}"),
              ZERO_OK);
    CHECK_INT(choose((struct hardware_choice){.device = "h100-80g"}, &m), ZERO_OK);
    CHECK_DOUBLE(m.device.price_per_hour, 2.5, 0);
    CHECK_DOUBLE(m.device.memory_bytes, 80e9, 0);
    CHECK_DOUBLE(m.between.per_s, 1e9, 0);
    CHECK_DOUBLE(m.between.reduce_per_s, 5e8, 0);
}

static void speeds_stand_in_for_names(void) {
    static const struct {
        const char *between, *drive;
        double link, read, write;
    } rows[] = {{"400Gb", "7GB/s", 42.5e9, 7e9, 7e9}, /* a name: as described */
                {"100Gbps", "7GB/s,5GB/s", 0.85 * 12.5e9, 7e9, 5e9},
                {"25 GB/s", "3e9", 0.85 * 25e9, 3e9, 3e9},
                {"3200Gb/node", "2GiB/s", 0.85 * 50e9, 2147483648., 2147483648.}};
    open_builtin();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct machine m;
        struct hardware_choice choice = {
            .device = "h100-80g", .between = rows[i].between, .drive = rows[i].drive};
        if (!CHECK_INT(choose(choice, &m), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
        CHECK_DOUBLE(m.between.per_s, rows[i].link, 1e-12);
        CHECK_DOUBLE(m.drive.read_per_s, rows[i].read, 1e-12);
        CHECK_DOUBLE(m.drive.write_per_s, rows[i].write, 1e-12);
        CHECK_DOUBLE(m.drive.mixed_per_s, fmin(rows[i].read, rows[i].write), 1e-12);
        CHECK_DOUBLE(m.drive.bytes, 30.7e12, 1e-12); /* as large as usual */
    }
}

static void what_is_wrong_is_named(void) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"{\"devces\": {}}", "my.json: devces: unknown key: did you mean devices"},
        {"{\"devices\": {\"a\": {\"memroy\": 1}}}",
         "my.json: devices.a.memroy: unknown key: did you mean memory"},
        {"{\"links\": {\"a\": {\"speed\": 1}}}", "there are per_s, reduce_per_s"},
        {"{\"devices\": {\"a\": {\"memory\": \"80GB\"}}}",
         "my.json: devices.a.memory: \"80GB\" is not possible here: write bytes, as 80e9"},
        {"{\"devices\": {\"a\": {\"memory\": 0}}}", "devices.a.memory: 0 is not"},
        {"{\"devices\": {\"a\": {\"memory\": -1}}}", "devices.a.memory: -1 is not"},
        {"{\"devices\": {\"a\": {\"memory_achieved\": 1.5}}}", "write a fraction above 0 and at most 1"},
        {"{\"devices\": {\"a\": {\"is_host\": 1}}}", "write true or false"},
        {"{\"devices\": {\"a\": {\"host\": 1}}}", "write the name of an entry of hosts"},
        {"{\"devices\": {\"a\": {\"source\": 1}}}", "write a text"},
        {"{\"devices\": []}", "my.json: devices: [ ] is not"},
        {"{\"devices\": {\"a\": 1}}", "my.json: devices.a: 1 is not"},
        {"{\"devices\": {\"\": {}}}", "a name has 1 to 47 bytes"},
        {"{\"devices\": {\"a\": {\"memory\": NaN}}}", "my.json:1:"},
        {"{\"devices\": {\"a\": {\"memory\": 1, \"memory\": 2}}}", "my.json:1:"},
        {"[]", "my.json:1:1"},
        {"", "my.json"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_builtin();
        if (!CHECK_INT(add(rows[i].text), ZERO_E_CONFIG)) fprintf(stderr, "%s\n", rows[i].text);
        CHECK_CONTAINS(error.message, rows[i].message);
    }
}

static void choices_that_cannot_be_are_named(void) {
    struct machine m;
    open_builtin();
    add("{\"devices\": {\"half\": {\"memory\": 1e9}}}");
    CHECK_INT(choose((struct hardware_choice){.device = "h100"}, &m), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "\"h100\" is none of the devices: did you mean h100-80g?");
    CHECK_INT(choose((struct hardware_choice){.device = "a100-80gb"}, &m), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "did you mean a100-80g?");
    CHECK_INT(choose((struct hardware_choice){.device = "half"}, &m), ZERO_E_CONFIG);
    CHECK_STRING(error.message, "devices.half.memory_per_s is missing: write bytes per second, as 3.35e12");
    CHECK_INT(choose((struct hardware_choice){.device = "cpu", .between = "400Gs"}, &m), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "\"400Gs\" is none of the links: did you mean 400Gb?");
    CHECK_INT(choose((struct hardware_choice){.device = "cpu", .drive = "7 parsecs"}, &m), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "is none of the drives");
    error_clear(&error);
    CHECK_INT(hardware_read(&hardware, "/nowhere/h.json", &error), ZERO_E_IO);
    CHECK_CONTAINS(error.message, "/nowhere/h.json: cannot be opened: No such file");
}

/* An update has the cores of one device: of a server of eight an eighth of the memory's bandwidth, unless the host's entry says otherwise. */
static void a_host_updates_for_its_device(void) {
    struct machine m;
    open_builtin();
    CHECK_INT(hardware_choose(&hardware, &(struct hardware_choice){.device = "h200"}, &m, &error), ZERO_OK);
    CHECK_STRING(m.host.name, "8-gpu-pcie5");
    CHECK_DOUBLE(m.host.update_per_s, 614e9 * 0.7 / 8, 1);
    CHECK_INT(hardware_choose(&hardware, &(struct hardware_choice){.device = "h200", .host = "16-cores"}, &m,
                              &error),
              ZERO_OK);
    CHECK_DOUBLE(m.host.update_per_s, 92e9, 1);
    CHECK_INT(m.node_ranks, 1);
    CHECK_INT(hardware_choose(&hardware, &(struct hardware_choice){.device = "h200", .host = "16-core"}, &m,
                              &error),
              ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "did you mean 16-cores");
}

static void a_section_has_an_end(void) {
    char text[8192] = "{\"hosts\": {";
    for (int i = 0; i <= HARDWARE_ENTRIES_MAX; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\"h%d\": {}", i ? "," : "", i);
    strcat(text, "}}");
    open_builtin();
    CHECK_INT(add(text), ZERO_E_CONFIG);
    CHECK_CONTAINS(error.message, "more than 64 entries of hosts");
}

/* Resources that a node's ranks share are divided among them. A part that the machine lacks gets the lowest speed, and
 * no rank uses it. */
static void machines_become_speeds(void) {
    struct machine m = {.device = {.memory_per_s = 1000, .flops = {7, 8, NAN}},
                        .host = {.memory_per_s = 800, .device_per_s = 30, .update_per_s = 150},
                        .inside = {.per_s = 100, .reduce_per_s = 50, .latency_s = 1},
                        .between = {.name = "net", .per_s = 10, .reduce_per_s = 5, .latency_s = 2}};
    struct speeds s = machine_speeds(&m, 4, DTYPE_BF16);
    CHECK_INT(s.flops_per_s, 8);
    CHECK_INT(s.host_bytes_per_s, 200);
    CHECK_INT(s.update_bytes_per_s, 150);
    CHECK_INT(s.bus_bytes_per_s, 30);
    CHECK_INT(machine_speeds(&m, 8, DTYPE_BF16).update_bytes_per_s, 100);
    CHECK_INT(machine_speeds(&m, 40, DTYPE_BF16).bus_bytes_per_s, 20);
    CHECK_INT(s.between.reduce_bytes_per_s, 5);
    CHECK_INT(s.between.latency_ns, 2000000000);
    CHECK_INT(s.drive_read_bytes_per_s, 1);
    m.device.is_host = true, m.between.name[0] = 0;
    strcpy(m.drive.name, "d");
    m.drive.read_per_s = 40, m.drive.write_per_s = 80, m.drive.mixed_per_s = 60;
    s = machine_speeds(&m, 4, DTYPE_F32);
    CHECK_INT(s.host_bytes_per_s, 1000);
    CHECK_INT(s.update_bytes_per_s, 1000);
    CHECK_INT(s.bus_bytes_per_s, 0);
    CHECK_INT(s.between.bytes_per_s, 100);
    CHECK_INT(s.drive_mixed_bytes_per_s, 15);
}

int main(void) {
    every_builtin_device_can_be_chosen();
    a_vendor_s_figures_become_what_is_reached();
    a_gpu_without_measured_rates_is_assumed_to_reach_a_share();
    a_file_adds_and_overrides();
    speeds_stand_in_for_names();
    what_is_wrong_is_named();
    choices_that_cannot_be_are_named();
    a_host_updates_for_its_device();
    a_section_has_an_end();
    machines_become_speeds();
    return check_end();
}
