package rawjson

import "math"

// IsInteger reports whether a token has the form of an integer: an optional minus and digits, no
// fraction, no exponent, no leading zero. Any length is allowed.
func IsInteger(tok []byte) bool {
	i := 0
	if len(tok) > 0 && tok[0] == '-' {
		i = 1
	}
	end := skipDigits(tok, i)
	return end == len(tok) && end > i && (tok[i] != '0' || end == i+1)
}

// Int returns the value of a whole number in any notation: 1.0 and 1e2 count. It returns false for
// fractions, for values outside int64, and for anything but a number.
func Int(v []byte) (int64, bool) {
	if n, ok := shortInt(v); ok {
		return n, true
	}
	n, ok := parseNumber(v)
	if !ok || !n.isInteger() {
		return 0, false
	}
	return n.int64()
}

// shortInt parses the common notation: up to 18 digits and nothing else.
func shortInt(v []byte) (n int64, ok bool) {
	if len(v) == 0 || len(v) > 18 || v[0] == '0' && len(v) > 1 {
		return 0, false
	}
	for _, c := range v {
		if c -= '0'; c > 9 {
			return 0, false
		}
		n = n*10 + int64(c)
	}
	return n, true
}

// Whole reports whether v is a number without a fraction, of any size and in any notation.
func Whole(v []byte) bool {
	n, ok := parseNumber(v)
	return ok && n.isInteger()
}

// number is a parsed number.
type number struct {
	neg      bool
	int, dec []byte // digits before and after the point
	exp      int    // power of ten; beyond half a billion only its sign is used
}

// parseNumber parses a number. It returns false for anything else.
func parseNumber(v []byte) (n number, ok bool) {
	v = trimSpace(v)
	c := checker{b: v}
	if len(v) == 0 || c.checkNumber(0) != len(v) {
		return n, false
	}
	if n.neg = v[0] == '-'; n.neg {
		v = v[1:]
	}
	i := skipDigits(v, 0)
	n.int, v = v[:i], v[i:]
	if len(v) > 0 && v[0] == '.' {
		i = skipDigits(v, 1)
		n.dec, v = v[1:i], v[i:]
	}
	if len(v) > 0 {
		n.exp = exponent(v[1:])
	}
	return n, true
}

func exponent(v []byte) (e int) {
	neg := v[0] == '-'
	for _, c := range v {
		if c -= '0'; c <= 9 && e < 1<<26 {
			e = e*10 + int(c)
		}
	}
	if neg {
		return -e
	}
	return e
}

// digit returns the digit for ten to the power of p after applying the exponent.
func (n *number) digit(p int) byte {
	p -= n.exp
	switch {
	case p >= 0 && p < len(n.int):
		return n.int[len(n.int)-1-p] - '0'
	case p < 0 && -p <= len(n.dec):
		return n.dec[-p-1] - '0'
	}
	return 0
}

// isInteger reports whether the number has no fraction.
func (n *number) isInteger() bool {
	// Only written digits can be nonzero.
	lowest := n.exp - len(n.dec)
	highest := min(0, n.exp+len(n.int))
	for p := lowest; p < highest; p++ {
		if n.digit(p) != 0 {
			return false
		}
	}
	return true
}

func (n *number) int64() (int64, bool) {
	top := n.exp + len(n.int) - 1
	for top >= 0 && top >= n.exp-len(n.dec) && n.digit(top) == 0 {
		top--
	}
	if top < max(0, n.exp-len(n.dec)) {
		return 0, true
	}
	if top > 18 {
		return 0, false
	}
	var u uint64
	for p := top; p >= 0; p-- {
		u = u*10 + uint64(n.digit(p))
	}
	switch {
	case n.neg && u <= 1<<63:
		return -int64(u), true
	case n.neg || u > math.MaxInt64:
		return 0, false
	}
	return int64(u), true
}
