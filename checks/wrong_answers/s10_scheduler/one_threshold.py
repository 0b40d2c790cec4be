"""One threshold turns the meter on and off: near it the admissions flicker."""

CAUGHT_BY = "test_between_the_thresholds_it_stays_what_it_was"
MESSAGE = "hysteresis"


class ThrashMeter:
    def observe(self, thrown_away, computed):
        self.steps.append((thrown_away, computed))
        rec, total = map(sum, zip(*self.steps))
        self.rec_new = rec / max(total - rec, 1)
        self.thrashing = self.rec_new > self.high
        return self.thrashing
