package score

import (
	"fmt"
	"math"
	"strings"
	"unicode"
)

// passAt is the score from which a measure of overlap counts as passed.
const passAt = 0.5

// graded makes the result of a measure of overlap. Short texts leave more room.
func graded(score float64, words int, detail string) Result {
	return Result{
		Score: score, Passed: score >= passAt, Detail: detail, Confidence: float64(words) / float64(words+5),
	}
}

// Measures of overlap compare no more than the beginning of a text, because their cost grows with its square or with
// the number of its different sequences.
const (
	maxWords   = 4000
	maxLetters = 20_000
)

// words are the runs of letters and digits of a text, in lower case: for ASCII those of the package rouge-score.
func words(s string) (all []string) {
	all = strings.FieldsFunc(strings.ToLower(s),
		func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
	return all[:min(len(all), maxWords)]
}

// RougeL is the F1 of the longest common subsequence of words, with the best reference.
func RougeL(text string, references []string) Result {
	got := words(text)
	best, detail := 0.0, ""
	for _, r := range references {
		want := words(r)
		if len(got) == 0 || len(want) == 0 {
			continue
		}
		common := float64(longestCommon(got, want))
		p, c := common/float64(len(got)), common/float64(len(want))
		if common == 0 || 2*p*c/(p+c) <= best {
			continue
		}
		best, detail = 2*p*c/(p+c), fmt.Sprintf("precision %.3f, recall %.3f", p, c)
	}
	return graded(best, len(got), detail)
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

// The rules by which mteval-v13a, NIST's script, separates punctuation. The order counts.
var (
	symbol13a = lazy("[{-~\\[-` -&(-+:-@/]")
	before13a = lazy(`([^0-9])([.,])`)
	after13a  = lazy(`([.,])([^0-9])`)
	dash13a   = lazy(`([0-9])-`)
	entity13a = strings.NewReplacer("&quot;", `"`, "&amp;", "&", "&lt;", "<", "&gt;", ">")
)

// tokens13a are the words and signs of a text as mteval-v13a separates them. Case counts.
func tokens13a(s string) []string {
	if first := strings.Fields(s); len(first) > maxWords {
		s = strings.Join(first[:maxWords], " ")
	}
	s = strings.NewReplacer("<skipped>", "", "-\n", "", "\n", " ").Replace(strings.TrimRightFunc(s, unicode.IsSpace))
	s = " " + entity13a.Replace(s) + " "
	s = symbol13a().ReplaceAllString(s, " $0 ")
	s = before13a().ReplaceAllString(s, "$1 $2 ")
	s = after13a().ReplaceAllString(s, " $1 $2")
	s = dash13a().ReplaceAllString(s, "$1 - ")
	all := strings.Fields(s)
	return all[:min(len(all), maxWords)]
}

// BLEU is that of one sentence as sacrebleu computes it: the geometric mean of the precisions of 1 to 4 words, each
// counted as often as one reference has it, times the penalty for being shorter than the nearest reference. A precision
// of zero counts as a half, a quarter and so on of one match.
func BLEU(text string, references []string) Result {
	got := tokens13a(text)
	var known [4]map[string]int // the most often that one reference has each sequence
	nearest := -1
	for _, r := range references {
		want := tokens13a(r)
		away, least := abs(len(want)-len(got)), abs(nearest-len(got))
		if nearest < 0 || away < least || away == least && len(want) < nearest {
			nearest = len(want)
		}
		for size := range known {
			if known[size] == nil {
				known[size] = map[string]int{}
			}
			for g, n := range grams(want, size+1) {
				known[size][g] = max(known[size][g], n)
			}
		}
	}
	log, orders, matched, missed := 0.0, 0.0, false, 1.0
	var precisions []string
	for size := range known {
		common, total := overlap(grams(got, size+1), known[size])
		if total == 0 {
			break
		}
		matched = matched || common > 0
		precisions = append(precisions, fmt.Sprintf("%.0f/%.0f", common, total))
		if common == 0 {
			missed *= 2
			common = 1 / missed
		}
		log += math.Log(common / total)
		orders++
	}
	if !matched {
		return graded(0, len(got), "no word in common")
	}
	penalty := math.Min(1, math.Exp(1-float64(nearest)/float64(len(got))))
	return graded(penalty*math.Exp(log/orders), len(got),
		fmt.Sprintf("precisions %s, brevity penalty %.3f", strings.Join(precisions, " "), penalty))
}

func abs(n int) int { return max(n, -n) }

// ChrF is the F2 of the mean precision and the mean recall of the sequences of 1 to 6 characters, blanks left out, with
// the best reference.
func ChrF(text string, references []string) Result {
	got := letters(text)
	var of [6]map[string]int
	for size := range of {
		of[size] = grams(got, size+1)
	}
	best, detail := 0.0, ""
	for _, r := range references {
		want := letters(r)
		var precision, recall, orders float64
		for size := range of {
			w := grams(want, size+1)
			common, total := overlap(of[size], w)
			if total == 0 || len(w) == 0 {
				continue
			}
			orders++
			precision += common / total
			recall += common / float64(len(want)-size)
		}
		if precision == 0 {
			continue
		}
		precision, recall = precision/orders, recall/orders
		if f := 5 * precision * recall / (4*precision + recall); f > best {
			best, detail = f, fmt.Sprintf("precision %.3f, recall %.3f", precision, recall)
		}
	}
	return graded(best, len(got)/5, detail)
}

// letters are the characters of a text but its blanks.
func letters(s string) (all []string) {
	for _, r := range s {
		if !unicode.IsSpace(r) {
			all = append(all, string(r))
		}
		if len(all) == maxLetters {
			break
		}
	}
	return all
}

// grams counts the sequences of a size. A blank, which no word has, separates the parts of each.
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
