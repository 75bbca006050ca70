/* dialect - the words kernels are written in, for CUDA C, HIP and OpenCL C. The only file that asks which target it is.
 *
 *   KERNEL(name)                  head of a kernel, its symbol is pk_name; it runs with groups of GROUP threads
 *   GLOBAL LOCAL LOCAL_PTR FN     memory spaces (LOCAL_PTR in pointers to it); a function of the device
 *   u8 u16 u32 u64 i8 i32 f32 v4u types; v4u is 16 bytes, four u32 .x .y .z .w, read at once from aligned places
 *   GROUP_X GROUP_Y GROUP_Z       which group, LOCAL_X which thread in it
 *   BARRIER()                     all threads of the group, local memory visible
 *   f16_load f16_store bf16_load bf16_store   storage types; arithmetic is f32
 *   bits_f32 f32_bits             reinterpretation
 *   group_sum group_max           over all GROUP threads, same result in each; scratch holds GROUP floats
 *   team_sum                      over TEAM neighbouring threads (TEAM divides GROUP)
 *   LOCAL_INC                     adds one to a u32 in local memory, gives what was there
 *   ROLLED                        before a loop that OpenCL compilers shall not unroll (PoCL takes minutes over large bodies)
 *   UNROLLED                      after ROLLED: before a loop that the others shall unroll
 *   EXP2 LOG2 EXP TANH ERFC SQRT FABS FMAX FMIN FMA RINT   f32 functions
 *   DIV(x, y)                     the float nearest to x / y on every target, where / of OpenCL may miss by 2.5: x and y positive,
 *                                 nothing near the ends of the range. For what decides a step of quantised numbers
 *   EXACT MUL ADD                 after EXACT at the head of a block each MUL and ADD in it is rounded on its own
 *   DOT4(a, b, c)                 c + the products of four bytes of a and b, all signed
 *   LOCAL_COUNT                   adds one to a u32 in local memory, gives what it was
 *   LOCAL_MAX(p, n)               a u32 in local memory becomes n if that is larger
 *   count_launch                  the witness: one thread of the launch adds one to a counter. All threads pass it, before
 *                                 they read what another launch wrote: where launches may overlap (sm_90 and up) it is
 *                                 also the wait for the launch before this one
 *   count_launch_late             the same, but the next launch begins only when all groups have come here: it may read what
 *                                 the launch before this one wrote before it waits itself
 * GROUP, and TEAM where used, are specialisation values: powers of two. */
#ifndef PL_DIALECT_H
#define PL_DIALECT_H

#ifdef PL_TARGET_OPENCL
typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef ulong u64;
typedef char i8;
typedef int i32;
typedef float f32;
typedef uint4 v4u;
#ifdef GROUP
#define KERNEL(name) __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void pk_##name
#else
#define KERNEL(name) __kernel void pk_##name
#endif
#define GLOBAL         __global
#define LOCAL          __local
#define LOCAL_PTR      __local
#define TABLE          __constant
#define FN             static
#define GROUP_X        ((u32)get_group_id(0))
#define GROUP_Y        ((u32)get_group_id(1))
#define GROUP_Z        ((u32)get_group_id(2))
#define LOCAL_X        ((u32)get_local_id(0))
#define BARRIER()      barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define bits_f32(u)    as_float((u32)(u))
#define f32_bits(f)    as_uint((f32)(f))
#define EXP2(x)        exp2((f32)(x))
#define LOG2(x)        log2((f32)(x))
#define EXP(x)         exp((f32)(x))
#define TANH(x)        tanh((f32)(x))
#define ERFC(x)        erfc((f32)(x))
#define SQRT(x)        sqrt((f32)(x))
#define FABS(x)        fabs((f32)(x))
#define FMAX(x, y)     fmax((f32)(x), (f32)(y))
#define FMIN(x, y)     fmin((f32)(x), (f32)(y))
#define FMA(x, y, z)   fma((f32)(x), (f32)(y), (f32)(z))
#define RINT(x)        rint((f32)(x))
#define EXACT          _Pragma("OPENCL FP_CONTRACT OFF")
#define MUL(x, y)      ((f32)(x) * (f32)(y))
#define ADD(x, y)      ((f32)(x) + (f32)(y))
#define LOCAL_COUNT(p) atomic_inc(p)
#define LOCAL_MAX(p, n) ((void)atomic_max(p, n))
#define NEG_INF        (-INFINITY)
#define ROLLED         _Pragma("unroll 1")
#define UNROLLED
FN f32 f16_load(GLOBAL const u16 *p) { return vload_half(0, (GLOBAL const half *)p); }
FN void f16_store(GLOBAL u16 *p, f32 v) { vstore_half_rte(v, 0, (GLOBAL half *)p); }
#define COUNTER_ADD(p) atomic_inc(p)
#define LOCAL_INC(p)   ((u32)atomic_inc((__local u32 *)(p)))
#define PL_SHUFFLE 0
#ifndef PL_DIV_OFF
#define PL_DIV_OFF 0 /* floats by which a test moves the quotient before it is mended */
#endif
/* Of the floats around a / b the one that leaves the least: a - q * b needs no rounding for the nearest and its neighbours. */
FN f32 DIV(f32 a, f32 b) {
    u32 first = f32_bits(a / b) + (u32)(PL_DIV_OFF) - 4u;
    f32 best = 0.0f, least = INFINITY;
    for (u32 i = 0; i < 9u; i++) {
        f32 q = bits_f32(first + i), rest = FABS(FMA(-q, b, a));
        if (rest < least) {
            least = rest;
            best = q;
        }
    }
    return best;
}
#endif

#if defined(PL_TARGET_CUDA) || defined(PL_TARGET_HIP)
#ifdef PL_TARGET_HIP
#ifndef __HIPCC_RTC__
#include <hip/hip_runtime.h>
#endif
#endif
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef int i32;
typedef float f32;
typedef uint4 v4u;
#if defined(GROUP) && defined(CLUSTER) /* so many neighbouring groups run at the same time and see each other's shared memory; sm_90 and up */
#define KERNEL(name) extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(GROUP) pk_##name
#elif defined(GROUP) && defined(GROUPS_HELD) /* so many groups a multiprocessor: bounds the registers */
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(GROUP, GROUPS_HELD) pk_##name
#elif defined(GROUP)
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(GROUP) pk_##name
#else
#define KERNEL(name) extern "C" __global__ void pk_##name
#endif
#define GLOBAL
#define LOCAL        __shared__
#define LOCAL_PTR
#define TABLE        __device__ const
#define FN           static __device__ __forceinline__
#define GROUP_X      ((u32)blockIdx.x)
#define GROUP_Y      ((u32)blockIdx.y)
#define GROUP_Z      ((u32)blockIdx.z)
#define LOCAL_X      ((u32)threadIdx.x)
#define BARRIER()    __syncthreads()
#define bits_f32(u)  __uint_as_float(u)
#define f32_bits(f)  __float_as_uint(f)
#define EXP2(x)      exp2f(x)
#define LOG2(x)      log2f(x)
#define EXP(x)       expf(x)
#define TANH(x)      tanhf(x)
#define ERFC(x)      erfcf(x)
#define SQRT(x)      sqrtf(x)
#define FABS(x)      fabsf(x)
#define FMAX(x, y)   fmaxf(x, y)
#define FMIN(x, y)   fminf(x, y)
#define FMA(x, y, z) fmaf(x, y, z)
#define RINT(x)      rintf(x)
#define DIV(x, y)    ((x) / (y)) /* both compilers round it, unless told not to */
#define LOCAL_COUNT(p) atomicAdd(p, 1u)
#define LOCAL_MAX(p, n) ((void)atomicMax(p, n))
#define NEG_INF      __uint_as_float(0xFF800000u)
#define ROLLED
#define UNROLLED _Pragma("unroll")
#define COUNTER_ADD(p) atomicAdd(p, 1u)
#define LOCAL_INC(p)   atomicAdd(p, 1u)
#define PL_SHUFFLE 1
#endif

#ifdef PL_TARGET_CUDA
#define EXACT
#define MUL(x, y)       __fmul_rn(x, y)
#define ADD(x, y)       __fadd_rn(x, y)
#define PL_NO_OFFSETOF /* NVRTC has none without headers; sizes are still checked */
FN f32 f16_load(const u16 *p) {
    f32 f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(*p));
    return f;
}
FN void f16_store(u16 *p, f32 v) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    *p = h;
}
#define PL_LANES          32u
#define lane_xor(v, mask) __shfl_xor_sync(0xFFFFFFFFu, v, mask)
#endif

#ifdef PL_TARGET_HIP
#define EXACT     _Pragma("clang fp contract(off)")
#define MUL(x, y) ((f32)(x) * (f32)(y))
#define ADD(x, y) ((f32)(x) + (f32)(y))
FN f32 f16_load(const u16 *p) { return (f32)*(const _Float16 *)p; }
FN void f16_store(u16 *p, f32 v) { *(_Float16 *)p = (_Float16)v; }
#ifndef PL_LANES
#define PL_LANES 32u /* shuffles never span more: right for waves of 32 and of 64 */
#endif
#define lane_xor(v, mask) __shfl_xor(v, (int)(mask), 32)
#endif

#if defined(PL_TARGET_CUDA) && __CUDA_ARCH__ >= 900
/* The next launch may start and come as far as this; this one goes on when the launch before it is done and visible. */
#define PL_NEXT_MAY() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define PL_AFTER_LAST() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define PL_NEXT_MAY()   ((void)0)
#define PL_AFTER_LAST() ((void)0)
#endif
FN void pl_count(GLOBAL u32 *counter) {
#ifdef PL_UNCOUNTED /* only to measure what counting costs */
    (void)counter;
#else
    if (LOCAL_X + GROUP_X + GROUP_Y + GROUP_Z == 0) COUNTER_ADD(counter);
#endif
}
FN void count_launch(GLOBAL u32 *counter) {
    PL_NEXT_MAY();
    PL_AFTER_LAST(); /* first of all: loads through restrict pointers are moved up to a branch, and past a wait behind it */
    pl_count(counter);
}
#ifdef PL_TARGET_CUDA
FN void count_launch_late(u32 *counter) {
    PL_AFTER_LAST();
    PL_NEXT_MAY();
    pl_count(counter);
}
#else
FN void count_launch_late(GLOBAL u32 *counter) { count_launch(counter); }
#endif

FN f32 bf16_load(GLOBAL const u16 *p) { return bits_f32((u32)*p << 16); }
FN u32 bf16_bits(f32 v) {
    u32 u = f32_bits(v);
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? (u >> 16) | 0x40u : (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
}
FN void bf16_store(GLOBAL u16 *p, f32 v) { *p = (u16)bf16_bits(v); }

#ifdef GROUP
/* The order of additions is fixed, so results repeat bit for bit. */
FN f32 group_sum(f32 v, LOCAL_PTR f32 *scratch) {
#if PL_SHUFFLE
    for (u32 m = PL_LANES / 2; m > 0; m >>= 1) v += lane_xor(v, m);
    if (GROUP <= PL_LANES) return v;
    BARRIER();
    if (LOCAL_X % PL_LANES == 0) scratch[LOCAL_X / PL_LANES] = v;
    BARRIER();
    v = 0.0f;
    for (u32 i = 0; i < GROUP / PL_LANES; i++) v += scratch[i];
    return v;
#else
    BARRIER();
    scratch[LOCAL_X] = v;
    BARRIER();
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        if (LOCAL_X < m) scratch[LOCAL_X] += scratch[LOCAL_X + m];
        BARRIER();
    }
    return scratch[0];
#endif
}
FN f32 group_max(f32 v, LOCAL_PTR f32 *scratch) {
#if PL_SHUFFLE
    for (u32 m = PL_LANES / 2; m > 0; m >>= 1) v = FMAX(v, lane_xor(v, m));
    if (GROUP <= PL_LANES) return v;
    BARRIER();
    if (LOCAL_X % PL_LANES == 0) scratch[LOCAL_X / PL_LANES] = v;
    BARRIER();
    v = scratch[0];
    for (u32 i = 1; i < GROUP / PL_LANES; i++) v = FMAX(v, scratch[i]);
    return v;
#else
    BARRIER();
    scratch[LOCAL_X] = v;
    BARRIER();
    for (u32 m = GROUP / 2; m > 0; m >>= 1) {
        if (LOCAL_X < m) scratch[LOCAL_X] = FMAX(scratch[LOCAL_X], scratch[LOCAL_X + m]);
        BARRIER();
    }
    return scratch[0];
#endif
}
#endif

#ifdef TEAM
/* TEAM 1, or up to 32 where threads run in step, any power of two elsewhere. scratch: GROUP floats. */
FN f32 team_sum(f32 v, LOCAL_PTR f32 *scratch) {
#if TEAM == 1
    (void)scratch;
    return v;
#elif PL_SHUFFLE
    (void)scratch;
    for (u32 m = TEAM / 2; m > 0; m >>= 1) v += lane_xor(v, m);
    return v;
#else
    BARRIER();
    scratch[LOCAL_X] = v;
    BARRIER();
    for (u32 m = TEAM / 2; m > 0; m >>= 1) {
        if (LOCAL_X % TEAM < m) scratch[LOCAL_X] += scratch[LOCAL_X + m];
        BARRIER();
    }
    return scratch[LOCAL_X - LOCAL_X % TEAM];
#endif
}
#endif

#ifdef PL_TARGET_CUDA
#define DOT4(a, b, c) __dp4a((int)(a), (int)(b), c)
#else
FN i32 DOT4(u32 a, u32 b, i32 c) {
    c += (i32)(i8)(a & 255u) * (i32)(i8)(b & 255u) + (i32)(i8)(a >> 8 & 255u) * (i32)(i8)(b >> 8 & 255u);
    return c + (i32)(i8)(a >> 16 & 255u) * (i32)(i8)(b >> 16 & 255u) + (i32)(i8)(a >> 24) * (i32)(i8)(b >> 24);
}
#endif

#define PL_MIN(a, b) ((a) < (b) ? (a) : (b))

#endif
