package contextstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/tool"
)

// Record is one stored context.
type Record struct {
	Name string `json:"name" doc:"a-z, 0-9 and -, at most 64"`
	Definition

	Fixed    bool      `json:"fixed,omitempty" doc:"the host or its configuration defines it and it can be changed only there"`
	Revision int64     `json:"revision" doc:"increases with every change; 0 for a fixed context"`
	Created  time.Time `json:"created,omitzero"`
	Updated  time.Time `json:"updated,omitzero"`
	By       string    `json:"by,omitempty" doc:"principal that changed it last"`
}

// Definition is what an administrator can define of a context. Patterns are those of path.Match; "!" in front
// excludes; an empty list means all.
type Definition struct {
	Description string `json:"description,omitempty" doc:"description for users"`

	Modules   []string          `json:"modules,omitzero" doc:"names; without it those of the default context, [] for none"`
	Tools     []string          `json:"tools,omitempty" doc:"patterns of tool names such as file_*; ! in front excludes"`
	Prompts   []string          `json:"prompts,omitempty" doc:"patterns of prompt names"`
	Resources []string          `json:"resources,omitempty" doc:"patterns of URIs"`
	Rename    map[string]string `json:"rename,omitempty" doc:"own names of tools or prompts, each with its name here"`
	Describe  map[string]string `json:"describe,omitempty" doc:"own names of tools or prompts, each with its description here"`
	Shape     []views.Shape     `json:"shape,omitempty" doc:"what else changes in tools: arguments that are fixed or have defaults, and results that are cut"`
	Style     string            `json:"style,omitempty" enum:"underscore,dot,colon"`
	Aliases   bool              `json:"aliases,omitempty" doc:"list tools under the first alias they declare"`
	Results   string            `json:"results,omitempty" doc:"structured sends the whole output of every tool with its schema; without it a tool that produces text sends text alone" enum:"text,structured"`
	List      string            `json:"list,omitempty" doc:"which tools are listed: all (the default); search, the pinned tools and those that find and call the others; auto, search for long lists and clients that do not search themselves" enum:"all,search,auto"`
	Pinned    []string          `json:"pinned,omitempty" doc:"patterns of tools that a short list has"`
	// ProgramsAsk concerns programs of the module code.
	ProgramsAsk bool `json:"programs_ask,omitempty" doc:"programs of code_run may call tools that ask the user or need an approval"`

	Roles   []string `json:"roles,omitempty" doc:"roles that may use it; if users is set too, either one is enough; if both are empty, every caller may"`
	Users   []string `json:"users,omitempty" doc:"patterns of principals that may use it"`
	KnownTo []string `json:"known_to,omitempty" doc:"roles that may see it without using it"`
	Team    string   `json:"team,omitempty" doc:"team that owns what is made in it: whoever may use it shares its processes, sandboxes, jobs, collections and the like; needs roles or users"`
	Labels  []string `json:"labels,omitempty" doc:"what a node of the cluster must have to run its sandboxes, processes and packages, such as zone=a; refused without a cluster"`
	Rules   []Rule   `json:"rules,omitempty" doc:"permission rules in addition to the host's, never less strict; the first that matches decides"`

	Limits Limits `json:"limits,omitzero" doc:"limits of its callers"`

	Env   map[string]string `json:"env,omitempty" doc:"environment of programs that run in it; ${secret:NAME} stands for a secret"`
	Roots []Root            `json:"roots,omitempty" doc:"folders its tools may access; none means the host's"`

	OwnTools   []Tool   `json:"own_tools,omitempty" doc:"tools it defines: programs and HTTP requests"`
	OwnPrompts []Prompt `json:"own_prompts,omitempty" doc:"prompts it defines, with {{argument}} in them"`

	OwnResources []Resource `json:"own_resources,omitempty" doc:"resources it defines: texts, files, programs and HTTP requests"`
}

// Rule is a permission rule of one context; see permit.Rule.
type Rule struct {
	Name       string   `json:"name,omitempty"`
	Principals []string `json:"principals,omitempty"`
	Roles      []string `json:"roles,omitempty"`
	Methods    []string `json:"methods,omitempty"` // none means tools/call
	Modules    []string `json:"modules,omitempty"`
	Names      []string `json:"names,omitempty"`
	Effects    []string `json:"effects,omitempty"` // reads, writes, destroys, open-world, idempotent
	When       string   `json:"when,omitempty"`    // an expression over args, caller and op
	Then       string   `json:"then" doc:"allow, stage, ask, ask-operator or refuse"`
	Reason     string   `json:"reason,omitempty"`
	Remember   string   `json:"remember,omitempty"` // how long an approval holds, such as 10m
}

// Limits bounds what the callers of a context can use. Zero means no limit.
type Limits struct {
	Calls int     `json:"calls,omitempty" doc:"calls that run at once, of all callers together; more calls wait" min:"0"`
	Rate  float64 `json:"rate,omitempty" doc:"calls per second of one caller" min:"0"`
	Burst int     `json:"burst,omitempty" doc:"calls of one caller that may arrive at once; 0 means twice the rate" min:"0"`
}

// Root is a folder. A path is absolute or begins with ~.
type Root struct {
	Name string `json:"name,omitempty"` // "" means the folder's own
	Path string `json:"path"`
}

// Prompt is a prompt that a context defines.
type Prompt struct {
	Name        string      `json:"name"`
	Title       string      `json:"title,omitempty"`
	Description string      `json:"description,omitempty"`
	Arguments   []PromptArg `json:"arguments,omitempty"`
	Template    string      `json:"template,omitempty"` // one message of the user
	Messages    []Message   `json:"messages,omitempty"` // or several
}

// PromptArg is an argument of a prompt.
type PromptArg struct {
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Required    bool     `json:"required,omitempty"`
	Values      []string `json:"values,omitempty"` // proposed as completions
}

// Message is one message of a prompt, a template.
type Message struct {
	Role string `json:"role"` // user or assistant
	Text string `json:"text"`
}

// Tool is a tool that a context defines: a program or an HTTP request.
type Tool struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description"`
	Help        string `json:"help,omitempty"`
	// JSON Schema of an object; none means no arguments
	Input json.RawMessage `json:"input,omitempty" doc:"JSON Schema of its arguments, an object"`
	// JSON Schema; what comes back is then JSON
	Output    json.RawMessage `json:"output,omitempty" doc:"JSON Schema of its result"`
	Effects   []string        `json:"effects,omitempty"`    // none counts as destructive
	Timeout   string          `json:"timeout,omitempty"`    // such as 30s, which is the default; at most 10m
	MaxOutput int             `json:"max_output,omitempty"` // bytes; 0 means 1 MiB, at most 16 MiB
	Command   *Command        `json:"command,omitempty"`
	HTTP      *HTTP           `json:"http,omitempty"`
}

// Command runs a program, without a shell.
type Command struct {
	Path  string   `json:"path"`            // a file, or a name in the host's PATH
	Args  []string `json:"args,omitempty"`  // a template each
	Dir   string   `json:"dir,omitempty"`   // in the context's roots; "" means the first of them
	Stdin string   `json:"stdin,omitempty"` // a template
}

// HTTP makes a request. The scheme and the host of the URL are fixed.
type HTTP struct {
	Method  string            `json:"method,omitempty"` // "" means POST
	URL     string            `json:"url"`              // a template
	Headers map[string]string `json:"headers,omitempty"`
	// Body is JSON. A string that consists of one placeholder stands for the argument's value, others are
	// templates. Without a Body, methods that have one send all arguments.
	Body json.RawMessage `json:"body,omitempty" doc:"any JSON"`
}

// Resource is a resource or resource template that a context defines: exactly one of Text, File, Command and HTTP
// gives its content. {{name}} in those stands for a variable of the URI template.
type Resource struct {
	URI         string     `json:"uri" doc:"a URI with a scheme, or an RFC 6570 template such as team://notes/{topic}"`
	Name        string     `json:"name"`
	Title       string     `json:"title,omitempty"`
	Description string     `json:"description,omitempty"`
	MIME        string     `json:"mime_type,omitempty" doc:"MIME type; without it that of the answer or of the file's extension, else text/plain"`
	Variables   []Variable `json:"variables,omitempty" doc:"values of the template's variables, proposed as completions"`
	Timeout     string     `json:"timeout,omitempty" doc:"of a command or request, such as 30s, which is the default; at most 10m"`
	MaxOutput   int        `json:"max_output,omitempty" doc:"bytes of the content; 0 means 1 MiB, at most 16 MiB"`

	Text    *string  `json:"text,omitempty" doc:"the content itself, a template"`
	File    string   `json:"file,omitempty" doc:"a path in the context's folders, a template; a value is one name in it"`
	Command *Command `json:"command,omitempty"`
	HTTP    *HTTP    `json:"http,omitempty" doc:"a GET request"`
}

// Variable proposes values for a variable of a URI template.
type Variable struct {
	Name   string   `json:"name"`
	Values []string `json:"values"`
}

// ModulePrefix begins the names of the modules with what contexts define for themselves.
const ModulePrefix = "own-"

// Module returns the name of the module with what a context defines for itself.
func (r *Record) Module() string { return ModulePrefix + r.Name }

// Defines reports whether the context has such a module.
func (r *Record) Defines() bool { return len(r.OwnTools)+len(r.OwnPrompts)+len(r.OwnResources) > 0 }

// Spec returns the definition of the view. modules are used if the context names none.
func (r *Record) Spec(modules []string) views.Spec {
	chosen := r.Modules
	if chosen == nil {
		chosen = modules
	}
	var tools, prompts []string
	for _, t := range r.OwnTools {
		tools = append(tools, t.Name)
	}
	for _, p := range r.OwnPrompts {
		prompts = append(prompts, p.Name)
	}
	var resources []string
	for _, res := range r.OwnResources {
		resources = append(resources, res.URI)
	}
	return views.Spec{
		Name: r.Name, Description: r.Description, Modules: slices.Concat(chosen, []string{r.Module()}),
		Tools: withOwn(
			r.Tools,
			tools,
		), Prompts: withOwn(r.Prompts, prompts), Resources: withOwn(r.Resources, resources),
		Rename: r.Rename, Describe: r.Describe, Shapes: r.Shape, Style: views.Style(r.Style), Aliases: r.Aliases,
		Results: r.Results, List: r.List, Pinned: r.Pinned, ProgramsAsk: r.ProgramsAsk, Team: r.Team,
		Labels: r.Labels,
	}
}

// withOwn adds what a context defines for itself to its patterns.
func withOwn(patterns, own []string) []string {
	if !slices.ContainsFunc(patterns, func(p string) bool { return !strings.HasPrefix(p, "!") }) {
		return patterns // all except some are chosen anyway
	}
	return slices.Concat(patterns, own)
}

// Access returns who may use the context.
func (r *Record) Access() permit.Access {
	return permit.Access{Context: r.Name, Roles: r.Roles, Users: r.Users, KnownTo: r.KnownTo}
}

// Permit returns the context's rules in the form of package permit.
func (r *Record) Permit() (rules []permit.Rule, err error) {
	for i := range r.Rules {
		one, err := r.Rules[i].permit(r.Name, i)
		if err != nil {
			return nil, err
		}
		rules = append(rules, one)
	}
	return rules, nil
}

// Does returns the effects of the tool; 0 declares nothing.
func (t *Tool) Does() tool.Effects {
	e, _ := permit.ParseEffects(t.Effects) // they have been checked
	return e
}

// Deadline returns how long a call of the tool may take.
func (t *Tool) Deadline() time.Duration { return deadline(t.Timeout) }

// Deadline returns how long reading the resource may take.
func (r *Resource) Deadline() time.Duration { return deadline(r.Timeout) }

func deadline(timeout string) time.Duration {
	if d, err := time.ParseDuration(timeout); err == nil && d > 0 {
		return d
	}
	return DefaultTimeout
}

// Most returns how many bytes a call of the tool may return.
func (t *Tool) Most() int { return most(t.MaxOutput) }

// Most returns how many bytes the resource's content may have.
func (r *Resource) Most() int { return most(r.MaxOutput) }

func most(output int) int {
	if output > 0 {
		return output
	}
	return DefaultMaxOutput
}

// Replace changes members by their JSON names: it sets the given ones, resets the cleared ones, and keeps the
// rest. The error is an *Invalid that names a member that does not exist or cannot be read.
func (d *Definition) Replace(given map[string]json.RawMessage, clear []string) error {
	raw, err := json.Marshal(d)
	if err != nil {
		return err
	}
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &members); err != nil {
		return err
	}
	maps.Copy(members, given)
	for _, name := range clear {
		if _, both := given[name]; both {
			return &Invalid{fmt.Errorf("clear: %s is given as well", name)}
		}
		if !isMember(name) {
			return &Invalid{fmt.Errorf("clear: there is no member %q", name)}
		}
		delete(members, name)
	}
	if raw, err = json.Marshal(members); err != nil {
		return err
	}
	var next Definition
	if err := decodeStrict(raw, &next); err != nil {
		return err
	}
	*d = next
	return nil
}

// ReadJSON is Replace with the members of a JSON object; null clears one. Members that only a Record has are
// ignored, so that a record that was shown can be read.
func (d *Definition) ReadJSON(raw []byte) error {
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil || given == nil {
		return &Invalid{errors.New("expected a JSON object, the definition of a context")}
	}
	var clear []string
	for _, own := range []string{"name", "fixed", "revision", "created", "updated", "by"} {
		delete(given, own)
	}
	for name, v := range given {
		if string(v) == "null" {
			delete(given, name)
			clear = append(clear, name)
		}
	}
	return d.Replace(given, clear)
}

// isMember reports whether a definition has a member of that JSON name.
func isMember(name string) bool {
	t := reflect.TypeFor[Definition]()
	for field := range t.Fields() {
		if own, _, _ := strings.Cut(field.Tag.Get("json"), ","); own == name {
			return true
		}
	}
	return false
}
