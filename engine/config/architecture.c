#include "engine/config/architecture.h"

#include "engine/config/config.h"

#define NAME(enumerator, name) name,
static const char *const names[] = {ARCHITECTURE_LIST(NAME)};

const char *config_architecture(uint32_t index) { return index < ARCHITECTURES ? names[index] : NULL; }
