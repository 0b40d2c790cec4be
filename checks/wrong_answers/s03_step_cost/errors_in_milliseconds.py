"""The fit minimises the error in milliseconds, so the longest steps decide and the floor hardly counts."""

CAUGHT_BY = "test_the_smallest_relative_error_wins"
MESSAGE = "the errors are relative"


def fit(profile):
    if len(profile) < 3:
        raise CourseError(f"a profile of {len(profile)} points can't be fitted: a floor and a line need at least 3")
    candidates = []
    for k in range(1, len(profile) - 1):
        slope, intercept = linear_regression([n for n, _ in profile[k:]], [ms for _, ms in profile[k:]])
        candidate = Fit(mean(ms for _, ms in profile[:k]), intercept, slope)
        candidates.append((sum((candidate.step_ms(n) - ms) ** 2 for n, ms in profile), k, candidate))
    return min(candidates)[2]
