// Package score grades the answers of models by rules: against a reference, a pattern, a schema or a number.
package score

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
)

// Result is the grade of one scorer.
type Result struct {
	Score  float64 `json:"score" doc:"0 to 1"`
	Passed bool    `json:"passed"`
	Detail string  `json:"detail,omitempty"`
	// Confidence is how sure the grade is, 0 to 1: 1 for rules that decide, less where the text leaves room.
	Confidence float64 `json:"confidence" doc:"0 to 1; rules that decide have 1"`
}

func decided(passed bool, detail string) Result {
	return Result{Score: float64(bit(passed)), Passed: passed, Detail: detail, Confidence: 1}
}

// Exact compares an answer with references. Case, punctuation at the ends, articles and blanks do not count.
func Exact(text string, references []string) Result {
	for _, r := range references {
		if normal(text) == normal(r) {
			return decided(true, "")
		}
	}
	return decided(false, "")
}

func normal(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsPunct(r) && r != '-' && r != '.' && r != ',' ||
			unicode.IsSymbol(r) && r != '+' && r != '=' && r != '%' {
			return ' '
		}
		return unicode.ToLower(r)
	}, s)
	var kept []string
	for w := range strings.FieldsSeq(s) {
		if w = strings.Trim(w, ".,"); w != "" && w != "a" && w != "an" && w != "the" {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}

// Regex looks for a pattern of RE2.
func Regex(text, pattern string) (Result, error) {
	if len(pattern) > 4<<10 {
		return Result{}, errors.New("pattern: more than 4096 bytes")
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return Result{}, fmt.Errorf("pattern: %w", err)
	}
	return decided(re.MatchString(text), ""), nil
}

// Schema checks whether an answer is JSON that obeys a schema. Code fences around it do not count.
func Schema(text string, s *schema.Schema) Result {
	if _, err := JSON(text, s); err != nil {
		return decided(false, err.Error())
	}
	return decided(true, "")
}

// JSON returns the JSON value in an answer, which obeys the schema unless that is nil. Blocks of thinking, code fences
// and text around a single object or array are left out.
func JSON(text string, s *schema.Schema) ([]byte, error) {
	text = strings.TrimSpace(StripThinking(text))
	err := errors.New("the answer has no JSON value")
	for _, candidate := range []string{text, fenced(text), outermost(text)} {
		if candidate == "" {
			continue
		}
		b := []byte(candidate)
		if bad := rawjson.Check(b, 128); bad != nil {
			continue
		}
		if s == nil {
			return b, nil
		}
		if err = s.Check(b); err == nil {
			return b, nil
		}
	}
	return nil, err
}

var fence = lazy("(?s)```[a-zA-Z]*\\s*\n(.*?)```")

func fenced(text string) string {
	if m := fence().FindStringSubmatch(text); m != nil {
		return strings.TrimSpace(m[1])
	}
	return ""
}

// outermost returns from the first opening bracket to the last closing one.
func outermost(text string) string {
	i := strings.IndexAny(text, "{[")
	j := strings.LastIndexAny(text, "}]")
	if i < 0 || j < i {
		return ""
	}
	return text[i : j+1]
}

var thinking = lazy(`(?s)<(think|thinking)>.*?</(?:think|thinking)>|^.*?</think>`)

// StripThinking removes the blocks in which models reason.
func StripThinking(text string) string { return thinking().ReplaceAllString(text, "") }

// A sign belongs to a number only if no digit or letter stands before it: 3-5 has the numbers 3 and 5.
var number = lazy(`(?:^|[^\w.])([-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|((?:\d[\d,_]*\.?\d*)(?:[eE][-+]?\d+)?)`)

// Numeric compares the last number of an answer with that of each reference. tolerance is a share of the reference.
func Numeric(text string, references []string, tolerance float64) (Result, error) {
	all := numbers(StripThinking(text))
	r := decided(false, "the answer has no number")
	for _, reference := range references {
		known := numbers(reference)
		if len(known) == 0 {
			return Result{}, fmt.Errorf("reference %q: expected a number", reference)
		}
		if len(all) == 0 || r.Passed {
			continue
		}
		got, want := all[len(all)-1], known[len(known)-1]
		away := math.Abs(got - want)
		r = decided(away <= tolerance*math.Abs(want) || away == 0, fmt.Sprintf("got %v, want %v", got, want))
	}
	if len(all) > 1 {
		r.Confidence = 0.8 // another number may be the one that was meant
	}
	return r, nil
}

// numbers returns the numbers of a text in their order.
func numbers(s string) (all []float64) {
	for _, m := range number().FindAllStringSubmatch(strings.ReplaceAll(s, "\u2212", "-"), -1) {
		f, err := strconv.ParseFloat(strings.NewReplacer(",", "", "_", "").Replace(m[1]+m[2]), 64)
		if err == nil {
			all = append(all, f)
		}
	}
	return all
}

// Wilson returns the interval that has the true share of passes with 95 % confidence.
func Wilson(passed, total int) (low, high float64) {
	if total == 0 {
		return 0, 1
	}
	const z = 1.96
	n, p := float64(total), float64(passed)/float64(total)
	middle := (p + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	return max(0, middle-half), min(1, middle+half)
}
