/* tolerance - every bound of the CPU kernels' tests, in one table. Changing one is a commit of its own with the
 * measurement that asks for it. */
#ifndef PL_TESTS_CPU_TOLERANCE_H
#define PL_TESTS_CPU_TOLERANCE_H

/* |y - ref| <= TOL * sum |x w|, weights exact and activations f32: summation order only. */
#define TOL_MATMUL_F32 2e-6
/* The same against the reference on activations quantised as ref does it: integers are exact, so block sums only. */
#define TOL_MATMUL_Q8_EXACT 2e-6
/* Against the reference on unquantised activations, times sum |w| * half a step: what rounding can do at worst. */
#define TOL_MATMUL_Q8 1.0
/* Against the reference on both sides rounded to bf16, times 1 + sum |w x|: order of sums. Besides one step of the
 * weightiest weight: the last bit of scale * code + min may decide on which side of a middle between bf16 numbers it lies.
 */
#define TOL_MATMUL_WIDE 1e-5
/* Against exact operands: activations in 16 bits, and the smallest of four products of terms left out. */
#define TOL_MATMUL_WIDE_FLOAT 2e-5
/* |y - ref| <= TOL * |ref| + TOL_ABS */
#define TOL_NORM    2e-6
#define TOL_GLU     2e-6
#define TOL_SOFTCAP 1e-6
#define TOL_ROPE    2e-6
#define TOL_SMALL   1e-6
/* |out - ref| <= TOL * max |v|, on the same (rounded) keys and values */
#define TOL_ATTENTION 3e-6

#endif
