/* True if a sanitizer's own memory and time are part of a test's measurements. */
#ifndef ZERO_TESTS_SANITIZED_H
#define ZERO_TESTS_SANITIZED_H

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||     \
    __has_feature(thread_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#endif
