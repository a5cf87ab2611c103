package schema

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// maxPattern is how large the patterns of one schema may be together, in
// instructions of the matcher. The time of a match grows with the size of the
// pattern and of the text, and a short pattern like (some words){1000} has
// thousands of instructions.
const maxPattern = 10_000

// patternSize estimates the number of instructions of a regular expression
// without compiling it.
func patternSize(expr string) (int, error) {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return 0, err
	}
	n := instructions(re)
	if n > maxPattern {
		return n, fmt.Errorf("a pattern of more than %d steps: repeat less", maxPattern)
	}
	return n, nil
}

func instructions(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min+1, re.Max, 1)
	}
	return min(n, 1<<30/1001)
}

// compilePattern compiles a pattern and adds its size to spent.
func compilePattern(expr string, spent *int) (*regexp.Regexp, int, error) {
	n, err := patternSize(expr)
	if *spent += n; err == nil && *spent > maxPattern {
		err = fmt.Errorf("patterns of more than %d steps together: repeat less", maxPattern)
	}
	if err != nil {
		return nil, n, err
	}
	re, err := regexp.Compile(expr)
	return re, n, err
}
