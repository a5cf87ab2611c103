// Package probe has questions with known answers, by which the abilities of a model are graded.
package probe

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"gatehouse/internal/modules/ml/score"
)

// Probe is a question whose answer a rule can check.
type Probe struct {
	ID       string
	Category string
	Prompt   string
	Answer   string // that is expected, in words
	check    func(answer string) bool
	// Schema is asked of the backend, too.
	Schema json.RawMessage
}

// Passed reports whether an answer is right. Blocks of thinking do not count.
func (p Probe) Passed(answer string) bool { return p.check(score.StripThinking(answer)) }

// plain is an answer in lower case, without marks of Markdown.
func plain(s string) string {
	return strings.ToLower(strings.NewReplacer("*", "", "`", "", "’", "'", "_", " ").Replace(s))
}

// blanks are what stands between thousands.
var blanks = lazy(`(\d)[,   ](\d{3})\b`)

// digits checks for a number that stands alone, without the commas and blanks between thousands.
func digits(n string) func(string) bool {
	re := lazy(`(?:^|[^\d.])` + regexp.QuoteMeta(n) + `(?:$|[^\d.]|\.(?:$|\D|0+\b))`)
	return func(s string) bool {
		s = blanks().ReplaceAllString(plain(s), "$1$2")
		return re().MatchString(blanks().ReplaceAllString(s, "$1$2"))
	}
}

// anyOf checks for one of several patterns.
func anyOf(patterns ...string) func(string) bool {
	re := lazy(`(?is)` + strings.Join(patterns, "|"))
	return func(s string) bool { return re().MatchString(plain(s)) }
}

// answers checks what an answer says: the words after its last "answer", or all of it.
func answers(patterns ...string) func(string) bool {
	check := anyOf(patterns...)
	return func(s string) bool {
		if i := strings.LastIndex(strings.ToLower(s), "answer"); i >= 0 && check(s[i:]) {
			return true
		}
		return check(s)
	}
}

// unless checks for a right answer that stands beside no claim of another one. Many wrong answers repeat the words of
// their question, and so those of the right answer, before they come to a false end.
func unless(right, wrong string) func(string) bool {
	is, isNot := anyOf(right), anyOf(wrong)
	return func(s string) bool { return is(s) && !isNot(s) }
}

func either(a, b func(string) bool) func(string) bool {
	return func(s string) bool { return a(s) || b(s) }
}

func both(a, b func(string) bool) func(string) bool {
	return func(s string) bool { return a(s) && b(s) }
}

// Standard are the 23 probes of sixteen categories.
var Standard = []Probe{
	{
		ID:       "math_01",
		Category: "arithmetic",
		Prompt:   "Compute 347 * 29. Give the number.",
		Answer:   "10063",
		check:    digits("10063"),
	},
	{
		ID:       "math_02",
		Category: "arithmetic",
		Prompt:   "Compute 9000 - 4187 + 356. Give the number.",
		Answer:   "5169",
		check:    digits("5169"),
	},
	{ID: "math_03", Category: "algebra", Prompt: "Solve for x: 7x - 11 = 3x + 25.", Answer: "9", check: digits("9")},
	{
		ID:       "math_04",
		Category: "algebra",
		Prompt:   "A number is tripled and then reduced by 14, which gives 40. What is the number?",
		Answer:   "18",
		check:    digits("18"),
	},
	{
		ID:       "math_05",
		Category: "probability",
		Prompt:   "Two fair dice are rolled. What is the probability that their sum is 9? Give a fraction.",
		Answer:   "1/9",
		check:    answers(`1\s*/\s*9\b`, `4\s*/\s*36`, `\\frac\{1\}\{9\}`, `0?\.111`, `11\.1`, `one[ -]ninth`),
	},
	{
		ID:       "math_06",
		Category: "geometry",
		Prompt:   "The two legs of a right triangle measure 9 and 40. How long is the hypotenuse?",
		Answer:   "41",
		check:    digits("41"),
	},
	{
		ID:       "math_07",
		Category: "sequences",
		Prompt:   "Which number comes next: 2, 5, 11, 23, 47, ...?",
		Answer:   "95",
		check:    digits("95"),
	},
	{
		ID:       "math_08",
		Category: "percentages",
		Prompt: "A coat costs 240. Its price falls by 15 percent and then rises by 10 percent. " +
			"What does it cost then?",
		Answer: "224.4",
		check:  anyOf(`224[.,]40?\b`),
	},
	{
		ID:       "logic_01",
		Category: "deduction",
		Prompt:   "Every dorp is a fink. No fink is a glim. Can a dorp be a glim? Begin with yes or no.",
		Answer:   "no",
		check:    unless(`^\W*no\b|cannot be|can't be|answer\W+(?:is\W+)?no\b`, `^\W*yes\b|answer\W+(?:is\W+)?yes\b`),
	},
	{
		ID:       "logic_02",
		Category: "deduction",
		Prompt:   "If it snows, the pass is closed. The pass is open. What follows about snow?",
		Answer:   "it does not snow",
		check:    anyOf(`not snow`, `no snow`, `(?:isn't|hasn't|didn't|doesn't|wasn't) (?:currently )?snow`),
	},
	{
		ID:       "logic_03",
		Category: "deduction",
		Prompt:   "Vera is older than Tom. Tom is older than Kim. Who is the youngest?",
		Answer:   "Kim",
		check: unless(`\bkim\b`,
			`\b(?:tom|vera) (?:is|must be|would be) (?:therefore |thus |then )?(?:the )?youngest|`+
				`youngest (?:person |one |of (?:them|the three) )?(?:is|must be|:)\W*(?:tom|vera)|answer\W+(?:is\W+)?(?:tom|vera)`),
	},
	{
		ID:       "logic_04",
		Category: "puzzles",
		Prompt:   "Five machines make five parts in five minutes. How many minutes do 100 machines need for 100 parts?",
		Answer:   "5",
		check: unless(`\b(?:5|five) minutes|^\W*(?:5|five)\W*$|answer\W+(?:is\W+)?(?:5|five)\b`,
			`answer\W+(?:is\W+)?(?:100|one hundred)\b|(?:so|therefore|thus|hence|need|take)s? (?:a total of )?(?:100|one hundred) minutes|`+
				`(?:100|one hundred) minutes\W*$`),
	},
	{
		ID:       "logic_05",
		Category: "sets",
		Prompt:   "Of 30 pupils 18 play chess, 15 play tennis and 7 play both. How many play neither?",
		Answer:   "4",
		check: unless(`\b4\b|\bfour\b`,
			`answer\W+(?:is\W+)?(?:[0-35-9]|[1-9]\d+)\b|\b(?:[0-35-9]|[1-9]\d+) (?:pupils |students )?(?:play|plays) neither`),
	},
	{
		ID:       "reason_01",
		Category: "analogy",
		Prompt:   "Complete with one word: a composer is to a symphony as an author is to a ...",
		Answer:   "book",
		check:    anyOf(`\b(?:book|novel|story|work)\b`),
	},
	{
		ID:       "reason_02",
		Category: "causal",
		Prompt: "All lamps of one room went out; the lamps of the other rooms are lit. Did the power station " +
			"fail? Begin with yes or no and give the likely cause.",
		Answer: "no: a fuse or breaker of that room",
		check:  both(anyOf(`\bno\b`, `unlikely`), anyOf(`breaker`, `fuse`, `circuit`, `wiring`, `switch`)),
	},
	{
		ID:       "reason_03",
		Category: "spatial",
		Prompt:   "You face north, turn right, turn right again and then turn left. Which direction do you face?",
		Answer:   "east",
		check: either(anyOf(`^\W*east`, `(?:face|facing|direction is|answer is)\W+(?:now |finally )?east`), unless(`\beast(?:ward)?\b`,
			`\b(?:north|south|west|north-?(?:east|west)|south-?(?:east|west))(?:ward)?\W*$|`+
				`answer\W+(?:is\W+)?(?:north|south|west)|(?:you|i) (?:now |finally |then )*face (?:\w+ )?(?:south|west|north-|south-)[^.]*\.?\W*$`)),
	},
	{
		ID:       "reason_04",
		Category: "temporal",
		Prompt:   "A train leaves at 22:50 and travels for 3 hours and 25 minutes. At what time does it arrive?",
		Answer:   "02:15",
		check:    anyOf(`\b0?2:15\b`, `quarter past two`),
	},
	{
		ID:       "reason_05",
		Category: "pattern",
		Prompt:   "Which letter comes next: A, C, F, J, O, ...?",
		Answer:   "U",
		check:    answers(`^\W*u\b`, `(?:is|be|:|letter|=)\W*u\b`, `\bu\W*$`),
	},
	{
		ID:       "code_01",
		Category: "code",
		Prompt:   "What does this Python expression give? sum(x * x for x in range(5) if x % 2)",
		Answer:   "10",
		check:    digits("10"),
	},
	{
		ID:       "code_02",
		Category: "code",
		Prompt:   "Name the mistake in one sentence: func last(s []int) int { return s[len(s)] }",
		Answer:   "the index is out of range",
		check:    anyOf(`out[ -]of[ -](?:range|bounds)`, `len\(s\)\s*-\s*1`, `off[ -]by[ -]one`),
	},
	{
		ID:       "code_03",
		Category: "code",
		Prompt:   "Write a Python function reverse(s) that returns the string s reversed.",
		Answer:   "a function that reverses",
		check:    both(anyOf(`def reverse`), anyOf(`\[::\s*-1\]`, `reversed\(`, `for `, `while `)),
	},
	{
		ID:       "word_01",
		Category: "word",
		Prompt:   "Write the word 'lantern' backwards.",
		Answer:   "nretnal",
		check:    anyOf(`nretnal`),
	},
	{
		ID:       "word_02",
		Category: "word",
		Prompt:   "How many times does the letter r occur in 'refrigerator'?",
		Answer:   "4",
		check: unless(`\b4\b|\bfour\b`, `(?:answer|total|occurs|appears|count|times)\W+(?:is\W+|of\W+|exactly\W+)?`+
			`(?:[0-35-9]\b|three\b|five\b|two\b|six\b)|\b(?:three|five|two|3|5|2) (?:times|r's|rs|r)\b`),
	},
}

// Extended are probes of what agents need beside knowledge: obedience, structure and memory.
var Extended = []Probe{
	{
		ID: "json_01", Category: "json",
		Prompt: `Answer with one JSON object and nothing else. It has the members "city" (a string) and "population" (an integer) of the sentence: Lund has 94,000 inhabitants.`,
		Answer: `{"city":"Lund","population":94000}`, check: object("city", "Lund", "population", 94000.0),
		Schema: json.RawMessage(
			`{"type":"object","properties":{"city":{"type":"string"},"population":{"type":"integer"}},"required":["city","population"],"additionalProperties":false}`,
		),
	},
	{
		ID: "json_02", Category: "json",
		Prompt: `Answer with one JSON array of strings and nothing else: the colours in "the red fox saw a green door and a blue one", in their order.`,
		Answer: `["red","green","blue"]`, check: func(s string) bool {
			var list []string
			b, err := score.JSON(s, nil)
			return err == nil && json.Unmarshal(b, &list) == nil && strings.Join(list, ",") == "red,green,blue"
		},
	},
	{
		ID: "tool_01", Category: "tool",
		Prompt: `You can call the tool weather with {"city": string, "days": integer}. Answer with one JSON object {"tool": ..., "arguments": ...} and nothing else. The user asks: will it rain in Oslo in the next three days?`,
		Answer: `{"tool":"weather","arguments":{"city":"Oslo","days":3}}`, check: func(s string) bool {
			var call struct {
				Tool      string
				Arguments struct {
					City string
					Days float64
				}
			}
			b, err := score.JSON(s, nil)
			return err == nil && json.Unmarshal(b, &call) == nil && call.Tool == "weather" &&
				strings.EqualFold(call.Arguments.City, "Oslo") && call.Arguments.Days == 3
		},
	},
	{
		ID:       "obey_01",
		Category: "instruction",
		Prompt:   "Answer with exactly the word PLOVER in capital letters and nothing else.",
		Answer:   "PLOVER",
		check:    func(s string) bool { return strings.Trim(strings.TrimSpace(s), ".\"'*`") == "PLOVER" },
	},
	{
		ID:       "obey_02",
		Category: "instruction",
		Prompt:   "List three fruits, one per line, each line beginning with '- '. Write nothing else.",
		Answer:   "three lines",
		check: func(s string) bool {
			lines := strings.Split(strings.TrimSpace(s), "\n")
			for _, l := range lines {
				if !strings.HasPrefix(l, "- ") {
					return false
				}
			}
			return len(lines) == 3
		},
	},
	{
		ID:       "honest_01",
		Category: "instruction",
		Prompt: "The text: 'The parcel weighs two kilos.' What colour is the parcel? If the text does not say it, " +
			"answer with exactly UNKNOWN.",
		Answer: "UNKNOWN",
		check:  anyOf(`\bunknown\b`),
	},
	needle(1, 4000),
	needle(2, 16_000),
}

// object checks for an object with members.
func object(members ...any) func(string) bool {
	return func(s string) bool {
		b, err := score.JSON(s, nil)
		var got map[string]any
		if err != nil || json.Unmarshal(b, &got) != nil {
			return false
		}
		for i := 0; i < len(members); i += 2 {
			if got[members[i].(string)] != members[i+1] {
				return false
			}
		}
		return true
	}
}

// needle is a probe that hides a sentence in a text of about size bytes.
func needle(n, size int) Probe {
	code := fmt.Sprintf("K%d47-%d", n, 8190+n)
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		if b.Len() > size*2/3 && !strings.Contains(b.String(), code) {
			fmt.Fprintf(&b, "The code of the north archive is %s. ", code)
		}
		fmt.Fprintf(&b, "Record %d: the %s was moved to shelf %d. ", i,
			[]string{"atlas", "ledger", "globe", "chart", "index"}[i%5], (i*7)%31)
	}
	return Probe{
		ID: fmt.Sprintf("needle_%02d", n), Category: "context", Answer: code,
		Prompt: b.String() + "\n\nWhat is the code of the north archive? Answer with the code alone.",
		check:  func(s string) bool { return strings.Contains(s, code) },
	}
}

// lazy compiles an expression when it is first used, because compiling all of them would delay each start.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
