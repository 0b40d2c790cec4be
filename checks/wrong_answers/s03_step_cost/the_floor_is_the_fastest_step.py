"""The floor is the fastest of the flat steps, where the mean would be wrong by less."""

CAUGHT_BY = "test_the_floor_is_the_mean_of_the_flat_points"
MESSAGE = "the mean of the flat points"


def fit(profile):
    if len(profile) < 3:
        raise CourseError(f"a profile of {len(profile)} points can't be fitted: a floor and a line need at least 3")
    candidates = []
    for k in range(1, len(profile) - 1):
        slope, intercept = linear_regression([n for n, _ in profile[k:]], [ms for _, ms in profile[k:]])
        candidate = Fit(min(ms for _, ms in profile[:k]), intercept, slope)
        candidates.append((candidate.error(profile), k, candidate))
    return min(candidates)[2]
