#include "engine/base/host_catch.h"

#include <cxxabi.h>

#include <cstdio>
#include <exception>

/* The C++ library is not linked: it is there where the host is C++, and elsewhere nothing throws. */
asm(".weak _Unwind_Resume, __gxx_personality_v0, __cxa_begin_catch, __cxa_end_catch, __cxa_rethrow, "
    "_ZSt9terminatev\n"
    ".weak _ZTISt9exception, _ZTIN10__cxxabiv115__forced_unwindE");

/* Those checks of C++ need a C++ library, too. */
__attribute__((no_sanitize("undefined"))) bool host_catch(void (*make)(void *call), void *call, char *said,
                                                          size_t bytes) {
    try {
        make(call);
        return true;
    } catch (abi::__forced_unwind &) {
        throw; /* pthread_exit, pthread_cancel */
    } catch (const std::exception &thrown) {
        std::snprintf(said, bytes, "%s", thrown.what());
    } catch (...) {
    }
    return false;
}
