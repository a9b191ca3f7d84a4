/* Under the thread sanitizer, loops over elements would take most of the time. They are compiled without it, and their caller names the
 * bytes that they read and write, so the same races are found. In other builds these functions do nothing. */
#pragma once

#include <stdint.h>

#ifndef __has_feature
#define __has_feature(name) 0
#endif

#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
/* The sanitizer's own (compiler-rt, lib/tsan/rtl/tsan_interface.h). */
void __tsan_read_range(void *first, unsigned long bytes);
void __tsan_write_range(void *first, unsigned long bytes);

enum { RACES_ARE_FOUND = 1 };
#define RACE_UNWATCHED __attribute__((no_sanitize("thread")))
static inline void race_read(const void *first, uint64_t bytes) {
    if (first) __tsan_read_range((void *)first, bytes);
}
static inline void race_write(void *first, uint64_t bytes) {
    if (first) __tsan_write_range(first, bytes);
}
#else
enum { RACES_ARE_FOUND = 0 };
#define RACE_UNWATCHED
static inline void race_read(const void *first, uint64_t bytes) { (void)first, (void)bytes; }
static inline void race_write(void *first, uint64_t bytes) { (void)first, (void)bytes; }
#endif
