"""The longest prefix first, always: a stream of hits starves whoever finds nothing."""

CAUGHT_BY = "test_nobody_is_passed_more_often_than_patience_allows"
MESSAGE = "they are served before anybody else"


class LongestPrefixFirst:
    def head(self):
        return max(self, key=self.cached)
