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

var number = lazy(`[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?`)

// Numeric compares the last number of an answer with a reference. tolerance is a share of the reference.
func Numeric(text, reference string, tolerance float64) (Result, error) {
	want, ok := lastNumber(reference)
	if !ok {
		return Result{}, fmt.Errorf("reference %q: expected a number", reference)
	}
	got, ok := lastNumber(StripThinking(text))
	if !ok {
		return decided(false, "the answer has no number"), nil
	}
	away := math.Abs(got - want)
	r := decided(away <= tolerance*math.Abs(want) || away == 0, fmt.Sprintf("got %v, want %v", got, want))
	if n := len(number().FindAllString(text, 10)); n > 1 {
		r.Confidence = 0.8 // another number may be the one that was meant
	}
	return r, nil
}

func lastNumber(s string) (float64, bool) {
	all := number().FindAllString(s, -1)
	if len(all) == 0 {
		return 0, false
	}
	f, err := strconv.ParseFloat(strings.NewReplacer(",", "", "_", "").Replace(all[len(all)-1]), 64)
	return f, err == nil
}

// passAt is the score from which a measure of overlap counts as passed.
const passAt = 0.5

// graded makes the result of a measure of overlap. Short texts leave more room.
func graded(score float64, words int) Result {
	return Result{Score: score, Passed: score >= passAt, Confidence: float64(words) / float64(words+5)}
}

// maxWords is how many words of a text measures of overlap compare.
const maxWords = 4000

func tokens(s string) (all []string) {
	all = strings.FieldsFunc(strings.ToLower(s),
		func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
	return all[:min(len(all), maxWords)]
}

// RougeL is the F1 of the longest common subsequence of words, with the best reference.
func RougeL(text string, references []string) Result {
	got := tokens(text)
	best, words := 0.0, len(got)
	for _, r := range references {
		want := tokens(r)
		if len(got) == 0 || len(want) == 0 {
			continue
		}
		if common := float64(longestCommon(got, want)); common > 0 {
			p, c := common/float64(len(got)), common/float64(len(want))
			best = max(best, 2*p*c/(p+c))
		}
	}
	return graded(best, words)
}

func longestCommon(a, b []string) int {
	row := make([]int, len(b)+1)
	for _, x := range a {
		diagonal := 0
		for j, y := range b {
			above := row[j+1]
			if x == y {
				row[j+1] = diagonal + 1
			} else {
				row[j+1] = max(above, row[j])
			}
			diagonal = above
		}
	}
	return row[len(b)]
}

// BLEU is the geometric mean of the precisions of 1 to 4 words, smoothed by one, with the penalty for brevity.
func BLEU(text string, references []string) Result {
	got := tokens(text)
	best := 0.0
	for _, r := range references {
		want := tokens(r)
		if len(got) == 0 || len(want) == 0 {
			continue
		}
		log, n := 0.0, min(4, len(got), len(want))
		for size := 1; size <= n; size++ {
			common, total := overlap(grams(got, size), grams(want, size))
			if size > 1 {
				common, total = common+1, total+1
			}
			log += math.Log(max(common, 1e-9)/total) / float64(n)
		}
		penalty := math.Min(1, math.Exp(1-float64(len(want))/float64(len(got))))
		best = max(best, penalty*math.Exp(log))
	}
	return graded(best, len(got))
}

// ChrF is the F2 of the shared sequences of 1 to 6 characters, blanks left out.
func ChrF(text string, references []string) Result {
	letters := func(s string) []string {
		return strings.Split(strings.Join(strings.Fields(clipRunes(s, 20_000)), ""), "")
	}
	got, best := letters(text), 0.0
	for _, r := range references {
		want := letters(r)
		var sum, orders float64
		for size := 1; size <= 6; size++ {
			g, w := grams(got, size), grams(want, size)
			common, total := overlap(g, w)
			_, all := overlap(w, g)
			if total == 0 || all == 0 {
				continue
			}
			orders++
			if common > 0 {
				p, c := common/total, common/all
				sum += 5 * p * c / (4*p + c)
			}
		}
		if orders > 0 {
			best = max(best, sum/orders)
		}
	}
	return graded(best, len(got)/5)
}

func clipRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

func grams(list []string, size int) map[string]int {
	all := map[string]int{}
	for i := 0; i+size <= len(list); i++ {
		all[strings.Join(list[i:i+size], " ")]++
	}
	return all
}

// overlap returns how many of a are in b, and how many there are in a.
func overlap(a, b map[string]int) (common, total float64) {
	for g, n := range a {
		total += float64(n)
		common += float64(min(n, b[g]))
	}
	return common, total
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
