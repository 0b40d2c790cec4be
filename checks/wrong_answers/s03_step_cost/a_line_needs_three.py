"""The search for the end of the flat part stops one place early, so a line through two points is never tried."""

CAUGHT_BY = "test_the_line_may_be_two_points"
MESSAGE = "as long as two points are left"


def fit(profile):
    if len(profile) < 3:
        raise CourseError(f"a profile of {len(profile)} points can't be fitted: a floor and a line need at least 3")
    candidates = []
    for k in range(1, max(len(profile) - 2, 2)):
        slope, intercept = linear_regression([n for n, _ in profile[k:]], [ms for _, ms in profile[k:]])
        candidate = Fit(mean(ms for _, ms in profile[:k]), intercept, slope)
        candidates.append((candidate.error(profile), k, candidate))
    return min(candidates)[2]
