"""Two points are taken for a profile: a floor is made of the first and a line without a slope of it."""

CAUGHT_BY = "test_too_few_points_are_refused"
MESSAGE = "check the number of points first"


def fit(profile):
    candidates = [(Fit(profile[0][1], profile[0][1], 0.0).error(profile), 0, Fit(profile[0][1], profile[0][1], 0.0))]
    for k in range(1, len(profile) - 1):
        slope, intercept = linear_regression([n for n, _ in profile[k:]], [ms for _, ms in profile[k:]])
        candidate = Fit(mean(ms for _, ms in profile[:k]), intercept, slope)
        candidates.append((candidate.error(profile), k, candidate))
    return min(candidates)[2]
