// native/kernels.cpp: picks the kernels for this processor once, when they are first asked for.
#include "kernels.hpp"

#include <cstdlib>
#include <cstring>

#if defined(UNISONO_X86)
#include <immintrin.h>
#endif

namespace unisono {

namespace baseline {
extern const Kernels table;
}
#if defined(UNISONO_X86)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

const Kernels* const* all_kernels(int& count) {
    static const Kernels* tables[3] = {&baseline::table};
    static const int found = [] {
        int tables_found = 1;
#if defined(UNISONO_X86)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
            tables[tables_found++] = &avx2::table;
            if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
                tables[tables_found++] = &avx512::table;
        }
#endif
        return tables_found;
    }();
    count = found;
    return tables;
}

const Kernels& kernels() {
    static const Kernels& chosen = []() -> const Kernels& {
        int count = 0;
        const Kernels* const* tables = all_kernels(count);
        if (const char* wanted = std::getenv("UNISONO_ISA"))
            for (int i = 0; i < count; ++i)
                if (std::strcmp(tables[i]->isa, wanted) == 0) return *tables[i];
        return *tables[count - 1];
    }();
    return chosen;
}

void fence() noexcept {
#if defined(UNISONO_X86)
    _mm_sfence();
#endif
}

}  // namespace unisono
