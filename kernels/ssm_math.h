/* ssm_math - what the kernels of state-space layers share. */
#ifndef PL_SSM_MATH_H
#define PL_SSM_MATH_H

FN f32 silu(f32 v) { return v / (1.0f + EXP(-v)); }
FN f32 clipped_softplus(f32 v, f32 least, f32 most) {
    f32 d = FMAX(v, 0.0f) + LOG2(1.0f + EXP(-FABS(v))) * 0.69314718f;
    if (v < -15.0f) d = EXP(v); /* the sum above has lost it */
    return FMIN(FMAX(d, least), most);
}
#endif
