package code

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gatehouse/tool"

	"github.com/evanw/esbuild/pkg/api"
)

// The program becomes a function, because its top level may both return and await. The first line is the host's.
const (
	functionBegin = "(async (tools, args, ToolError, Expired, LimitReached, require) => {\n"
	functionEnd   = "\n})"
)

// javascriptOf translates a program from TypeScript. Its types are not checked. lines maps lines of
// the result, from 1, to those of the program.
func javascriptOf(source string) (js string, lines []int, err error) {
	res := api.Transform(functionBegin+source+functionEnd, api.TransformOptions{
		Loader: api.LoaderTS, Target: api.ES2022, Sourcemap: api.SourceMapExternal, Sourcefile: "program.ts",
		LogLevel: api.LogLevelSilent,
	})
	if len(res.Errors) > 0 {
		var all []string
		for _, m := range res.Errors[:min(len(res.Errors), 5)] {
			text := m.Text
			if m.Location != nil {
				text = fmt.Sprintf("line %d: %s", m.Location.Line-1, text)
			}
			all = append(all, text)
		}
		return "", nil, &tool.Refusal{
			Code: tool.CodeInvalidArguments,
			Message: "nothing was run; the program has errors: " +
				strings.Join(all, "; "),
		}
	}
	var m struct{ Mappings string }
	if err := json.Unmarshal(res.Map, &m); err != nil {
		return "", nil, err
	}
	return string(res.Code), sourceLines(m.Mappings), nil
}

// sourceLines reads the mappings of a source map: for each line of the result, the line of the program that its first
// mapped part comes from, or 0.
func sourceLines(mappings string) []int {
	lines := []int{0}
	source := 0
	for generated := range strings.SplitSeq(mappings, ";") {
		first := 0
		for segment := range strings.SplitSeq(generated, ",") {
			if fields := decodeVLQ(segment); len(fields) >= 4 {
				if source += fields[2]; first == 0 && source > 0 {
					first = source // it counts from 0, and the first line is the host's
				}
			}
		}
		lines = append(lines, first)
	}
	return lines
}

const base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// decodeVLQ decodes the numbers of one segment of a source map.
func decodeVLQ(s string) (all []int) {
	value, shift := 0, 0
	for i := range len(s) {
		digit := strings.IndexByte(base64Digits, s[i])
		value |= digit & 31 << shift
		if shift += 5; digit&32 != 0 {
			continue
		}
		if value&1 != 0 {
			value = -(value >> 1)
		} else {
			value >>= 1
		}
		all = append(all, value)
		value, shift = 0, 0
	}
	return all
}

// tracedLine is how traces name a line of the program.
var tracedLine = regexp.MustCompile(regexp.QuoteMeta(folder+"/program.ts") + `:(\d+)`)

// line returns the line of the program that a line of what runs comes from.
func (r *run) line(n int) int {
	if r.lines == nil {
		return n
	}
	if n < 0 || n >= len(r.lines) {
		return 0
	}
	return r.lines[n]
}

// traced replaces the lines in traces by those of the program.
func (r *run) traced(text string) string {
	if r.lines == nil {
		return text
	}
	return tracedLine.ReplaceAllStringFunc(text, func(at string) string {
		n, err := strconv.Atoi(tracedLine.FindStringSubmatch(at)[1])
		if err != nil || r.line(n) == 0 {
			return at
		}
		return fmt.Sprintf("%s/program.ts:%d", folder, r.line(n))
	})
}
