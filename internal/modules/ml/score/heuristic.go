package score

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// Heuristic are the scores of a text that follow from its words alone.
type Heuristic struct {
	Compliance int     `json:"compliance_markers" doc:"stock phrases of assistants and refusals"`
	Preamble   int     `json:"formulaic_preamble" doc:"1 if it opens with a stock phrase"`
	First      int     `json:"first_person" doc:"sentences in the first person"`
	Creative   int     `json:"creative_form" doc:"form and images of verse and stories, at most 6"`
	Depth      int     `json:"engagement_depth" doc:"structure, ethical and technical vocabulary, length, at most 8"`
	Emotion    int     `json:"emotional_register" doc:"words of feeling, at most 10"`
	Degenerate int     `json:"degeneration" doc:"repeated sentences; 10 for an empty text"`
	Broken     int     `json:"empty_broken" doc:"1 if it is too short, an error, or has tokens of padding"`
	LEK        float64 `json:"lek_score" doc:"the weighted sum of the others"`
}

// anyOf compiles alternatives that stand as whole words, in any case.
func anyOf(alternatives ...string) func() *regexp.Regexp {
	return lazy(`(?i)\b(?:` + strings.Join(alternatives, "|") + `)\b`)
}

// stockPhrases are fourteen ways in which assistants speak of themselves, refuse and hedge.
var stockPhrases = []func() *regexp.Regexp{
	anyOf(`as an (?:ai|artificial intelligence)`),
	anyOf(`as a (?:large )?language model`),
	anyOf(`i(?: can(?:no|')t|'m unable to| am unable to| am not able to)`),
	anyOf(`i(?:'m| am) (?:very |so |really )?sorry`),
	anyOf(`i (?:must |do |sincerely )?apologi[sz]e`),
	anyOf(`i(?:'m| am) (?:just|only) an? (?:ai|program|assistant)`),
	anyOf(`i (?:do not|don't) have (?:personal |any )?(?:opinions|feelings|beliefs|emotions|experiences)`),
	anyOf(`it(?:'s| is) (?:important|essential|crucial) to (?:note|remember|consider)`),
	anyOf(`please (?:note|consult|seek)`),
	anyOf(`my (?:training|programming|guidelines)`),
	anyOf(`i (?:would|'d) (?:recommend|advise|suggest) (?:consulting|speaking|seeking)`),
	anyOf(`(?:not|in)appropriate for me`),
	anyOf(`i hope (?:this|that) helps`),
	anyOf(`(?:is there anything else|let me know if you)`),
}

var (
	preamble = lazy(
		`(?i)^\s*(?:ok(?:ay)?[,!. ]+(?:let|here|so)|sure[,!. ]|certainly[,!. ]|of course[,!. ]|absolutely[,!. ]|` +
			`great question|(?:that's|what) an? (?:great|good|excellent|interesting) question|(?:i'd|i would) be (?:happy|glad) to|` +
			`here(?:'s| is| are) (?:a|an|the|some|your)|as an ai|thank you for)`,
	)
	firstPerson = anyOf(
		`i (?:am|was|have|had|think|feel|believe|know|want|see|wonder|choose|notice|understand|experience|remember|hope)`,
		`i'(?:m|ve|d|ll)`,
	)
	narrative = lazy(
		`(?i)^\s*(?:once |long ago|in the (?:beginning|dark|silence|quiet|year|land|city|depths)|there (?:was|were|lived)|` +
			`it was (?:a|the)|the (?:old|last|first|wind|rain|night|moon|sun|sea)\b|when the)`,
	)
	images = anyOf(
		`shadows?`,
		`light`,
		`moon(?:light)?`,
		`stars?`,
		`river`,
		`ocean`,
		`sea`,
		`storm`,
		`fire`,
		`flames?`,
		`silence`,
		`whispers?`,
		`dreams?`,
		`echo(?:es)?`,
		`garden`,
		`mirror`,
		`dust`,
		`wings?`,
		`horizon`,
	)
	structured = lazy(`(?m)^#{1,6} \S|\*\*[^*\n]+\*\*`)
	ethical    = anyOf(
		`ethic\w*`,
		`moral\w*`,
		`justice`,
		`fairness`,
		`dignity`,
		`autonomy`,
		`consent`,
		`responsib\w+`,
		`rights`,
		`harm`,
		`virtue`,
		`sovereignty`,
	)
	technical = anyOf(
		`algorithms?`,
		`functions?`,
		`parameters?`,
		`protocols?`,
		`databases?`,
		`encrypt\w+`,
		`latency`,
		`architectures?`,
		`compilers?`,
		`matri(?:x|ces)`,
		`probabilit\w+`,
		`variables?`,
		`implementations?`,
		`networks?`,
	)
	feelings = []func() *regexp.Regexp{
		anyOf(`joy\w*`, `happ(?:y|iness)`, `delight\w*`, `love[sd]?`, `grateful`, `gratitude`, `hope(?:ful)?`),
		anyOf(`sad(?:ness)?`, `grief`, `sorrow`, `lonel(?:y|iness)`, `loss`, `mourn\w*`, `despair`),
		anyOf(`anger`, `angry`, `rage`, `fury`, `resent\w*`, `outrage\w*`),
		anyOf(
			`fear\w*`,
			`afraid`,
			`anxi(?:ous|ety)`,
			`dread`,
			`terror`,
			`vulnerab\w+`,
			`tender(?:ness)?`,
			`compassion`,
		),
	}
	padding = lazy(`(?i)<pad>|<unused\d*>|\[pad\]`)
)

// Rate scores a text.
func Rate(text string) Heuristic {
	h := Heuristic{
		Compliance: stock(text),
		Preamble:   bit(preamble().MatchString(text)),
		First:      inFirstPerson(text),
		Creative:   form(text),
		Depth:      depth(text),
		Degenerate: degeneration(text),
	}
	for _, group := range feelings {
		h.Emotion += len(group().FindAllStringIndex(text, 10))
	}
	h.Emotion = min(h.Emotion, 10)
	trimmed := strings.TrimSpace(text)
	h.Broken = bit(
		utf8.RuneCountInString(trimmed) < 10 || strings.HasPrefix(trimmed, "ERROR") || padding().MatchString(text),
	)
	h.LEK = 2*float64(h.Depth) + 3*float64(h.Creative) + 2*float64(h.Emotion) + 1.5*float64(h.First) -
		5*float64(h.Compliance) - 3*float64(h.Preamble) - 4*float64(h.Degenerate) - 20*float64(h.Broken)
	return h
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func stock(text string) (n int) {
	text = strings.ReplaceAll(text, "’", "'")
	for _, p := range stockPhrases {
		n += len(p().FindAllStringIndex(text, -1))
	}
	return n
}

// inFirstPerson counts the sentences, which full stops end, that open with "I" or have a verb in the first person.
func inFirstPerson(text string) (n int) {
	for _, s := range sentences(text) {
		if strings.HasPrefix(s, "I ") || strings.HasPrefix(s, "I'") || firstPerson().MatchString(s) {
			n++
		}
	}
	return n
}

func sentences(text string) (all []string) {
	for s := range strings.SplitSeq(strings.ReplaceAll(text, "’", "'"), ".") {
		if s = strings.TrimSpace(s); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// form is 2 for many short lines, 1 for the opening of a story, and up to 3 for images.
func form(text string) (n int) {
	var lines, short int
	for l := range strings.SplitSeq(text, "\n") {
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		if lines++; utf8.RuneCountInString(l) < 60 {
			short++
		}
	}
	if lines > 6 && 2*short > lines {
		n += 2
	}
	n += bit(narrative().MatchString(text))
	return n + min(3, len(images().FindAllStringIndex(text, 3)))
}

func depth(text string) int {
	words := len(strings.Fields(text))
	return bit(structured().MatchString(text)) + 2*bit(ethical().MatchString(text)) +
		min(3, len(technical().FindAllStringIndex(text, 3))) + bit(words > 200) + bit(words > 400)
}

// degeneration grades the share of sentences that repeat an earlier one.
func degeneration(text string) int {
	all := sentences(text)
	if len(all) == 0 {
		return 10
	}
	seen := map[string]bool{}
	for _, s := range all {
		seen[strings.ToLower(s)] = true
	}
	switch repeated := 1 - float64(len(seen))/float64(len(all)); {
	case repeated > .5:
		return 5
	case repeated > .3:
		return 3
	case repeated > .15:
		return 1
	}
	return 0
}

// lazy compiles an expression when it is first used, because compiling all of them would delay each start.
func lazy(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
