// Package mcpversion describes the released revisions of the Model Context Protocol as data: their
// names, their order and their features.
package mcpversion

// Revision is one released revision. Later ones compare greater; the zero
// value is none.
type Revision uint8

const (
	None Revision = iota
	V20241105
	V20250326
	V20250618
	V20251125
	V20260728
)

// Latest is the newest revision, LatestLegacy the newest with a handshake.
const (
	Latest       = V20260728
	LatestLegacy = V20251125
)

var names = [...]string{"", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"}

func (r Revision) String() string { return names[r] }

// Parse returns the revision with a name.
func Parse(name string) (Revision, bool) {
	for r := V20241105; r <= Latest; r++ {
		if names[r] == name {
			return r, true
		}
	}
	return None, false
}

// Names lists every revision, newest first, for the answer to a client that asked for another.
func Names() []string {
	var out []string
	for r := Latest; r > None; r-- {
		out = append(out, names[r])
	}
	return out
}

// Modern reports whether the revision has no handshake and no session, so that no request depends on an
// earlier one.
func (r Revision) Modern() bool { return r >= V20260728 }

// ModernName is Modern for a name that may belong to no released revision;
// names are dates and compare as text.
func ModernName(name string) bool { return name >= names[V20260728] }

// Feature is a feature that not every revision has.
type Feature uint8

const (
	Batches             Feature = iota // several messages in one array
	ProgressNotes                      // messages in progress notifications
	ToolAnnotations                    // hints about a tool's effects
	Audio                              // audio content
	CompletionsFlag                    // a capability for completions
	Titles                             // title beside name, wider _meta
	Structured                         // structuredContent and outputSchema, objects only
	StructuredAny                      // structuredContent of any JSON type
	ResourceLinks                      // resource_link content
	Elicitation                        // elicitation/create with forms
	ElicitationURL                     // elicitation/create with URLs
	Icons                              // icons; description and websiteUrl of an implementation
	SamplingTools                      // tools inside sampling
	CoreTasks                          // the experimental tasks of 2025-11-25
	ToolErrorsForInput                 // invalid arguments are a tool error
	ResourceErrorLegacy                // -32002 for an unknown resource
	features
)

var span = [features]struct{ from, to Revision }{
	Batches:             {V20250326, V20250326},
	ProgressNotes:       {V20250326, Latest},
	ToolAnnotations:     {V20250326, Latest},
	Audio:               {V20250326, Latest},
	CompletionsFlag:     {V20250326, Latest},
	Titles:              {V20250618, Latest},
	Structured:          {V20250618, Latest},
	StructuredAny:       {V20260728, Latest},
	ResourceLinks:       {V20250618, Latest},
	Elicitation:         {V20250618, Latest},
	ElicitationURL:      {V20251125, Latest},
	Icons:               {V20251125, Latest},
	SamplingTools:       {V20251125, Latest},
	CoreTasks:           {V20251125, V20251125},
	ToolErrorsForInput:  {V20241105, Latest}, // a clarification of 2025-11-25; harmless and more useful before it
	ResourceErrorLegacy: {V20241105, V20251125},
}

// Has reports whether the revision has a feature.
func (r Revision) Has(f Feature) bool { return r >= span[f].from && r <= span[f].to }
