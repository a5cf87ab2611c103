// Package pages writes one Markdown page per module from its offer.
package pages

import (
	"cmp"
	"fmt"
	"strings"

	"gatehouse/internal/tests/repotest/catalog"
	"gatehouse/tool"
)

// written tells readers and tools how a page was generated.
const written = "<!-- Written by go generate ./internal/tests/repotest/gen from the module's own definitions. " +
	"Do not edit. -->\n"

// Page returns the page of a module.
func Page(m catalog.Module) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# The %s module\n\n%s", m.Name, written)
	for _, t := range m.Tools {
		if err := describe(&b, t); err != nil {
			return "", fmt.Errorf("%s: %w", t.Def.Name, err)
		}
	}
	for _, r := range m.Resources {
		fmt.Fprintf(&b, "\n## Resource `%s`\n\n%s\n", r.URI, cmp.Or(r.Description, r.Name))
	}
	for _, p := range m.Prompts {
		fmt.Fprintf(&b, "\n## Prompt `%s`\n\n%s\n", p.Name, cmp.Or(p.Description, p.Title))
	}
	return b.String(), nil
}

func describe(b *strings.Builder, t catalog.Tool) error {
	d := t.Def
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n%s\n", d.Name, d.Description, facts(d))
	args, err := fields(t.Input)
	if err != nil {
		return fmt.Errorf("input schema: %w", err)
	}
	writeTable(b, "argument", args, "It takes no arguments.")
	if len(t.Output) > 0 {
		results, err := fields(t.Output)
		if err != nil {
			return fmt.Errorf("output schema: %w", err)
		}
		if t.Product != "" {
			fmt.Fprintf(
				b,
				"\nThe result is the text of `%s`, followed by the facts of the call. A view with `results: "+
					"structured` sends all members as structured content.\n",
				t.Product,
			)
		}
		writeTable(b, "result", results, "It gives back nothing but that it is done.")
	}
	if d.Help != "" {
		fmt.Fprintf(b, "\n%s\n", lower(strings.TrimSpace(d.Help)))
	}
	return nil
}

// facts describes in one line what the definition promises besides its fields.
func facts(d tool.Def) string {
	said := []string{catalog.EffectsText(d.Effects)}
	if d.Timeout > 0 {
		said = append(said, "It has "+d.Timeout.String()+" to work.")
	}
	if d.NeedsSession {
		said = append(said, "It uses the caller's session where there is one.")
	}
	if d.Sync {
		said = append(said, "Subscriptions are brought up to date at once after it.")
	}
	if len(d.Aliases) > 0 {
		said = append(said, "It also answers to `"+strings.Join(d.Aliases, "`, `")+"` in a view that asks for it.")
	}
	return strings.Join(said, " ")
}

func writeTable(b *strings.Builder, what string, rows []field, none string) {
	if len(rows) == 0 {
		fmt.Fprintf(b, "\n%s\n", none)
		return
	}
	if what == "argument" {
		b.WriteString("\n| argument | type | default | meaning |\n|---|---|---|---|\n")
	} else {
		b.WriteString("\n| result | type | meaning |\n|---|---|---|\n")
	}
	for _, f := range rows {
		name := "`" + f.name + "`"
		if what != "argument" {
			fmt.Fprintf(b, "| %s | %s | %s |\n", name, f.kind, cell(f.text))
			continue
		}
		standard := f.standard
		if f.required {
			standard = "*needed*"
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", name, f.kind, standard, cell(f.text))
	}
}

// cell formats a text for one cell of a table.
func cell(s string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(s), " "), "|", `\|`)
}

// lower moves the headings of a help text below the tool's own.
func lower(help string) string {
	var b strings.Builder
	fenced := false
	for line := range strings.Lines(help) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if !fenced && strings.HasPrefix(line, "#") {
			b.WriteString("##")
		}
		b.WriteString(line)
	}
	return b.String()
}
