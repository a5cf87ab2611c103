package cli

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/catalog"
)

// searchFlags say where to search.
type searchFlags struct {
	kinds   []string
	limit   int
	offline bool
	json    bool
}

func (f *searchFlags) registerFlags(set *pflag.FlagSet) {
	set.SortFlags = false
	set.StringSliceVar(&f.kinds, "source", nil,
		"where to search: "+strings.Join(catalog.Kinds(), ", ")+" (default: all)")
	set.IntVarP(&f.limit, "limit", "n", 20, "most results")
	set.BoolVar(&f.offline, "offline", false, "ask no server; answer from the cache")
	set.BoolVar(&f.json, "json", false, "print JSON")
}

// openCatalog opens the catalog of the settings.
func openCatalog(w Environment) (*catalog.Catalog, config.Config, error) {
	l, err := readSettings(w)
	if err != nil {
		return nil, config.Config{}, err
	}
	return catalog.New(app.CatalogOptions(l.Config)), l.Config, nil
}

// search searches, and prints how the sources answered.
func (f *searchFlags) search(ctx context.Context, w Environment, word string) (catalog.Results, config.Config, error) {
	c, cfg, err := openCatalog(w)
	if err != nil {
		return catalog.Results{}, cfg, err
	}
	r, err := c.Search(ctx, catalog.Query{Word: word, Limit: f.limit, Kinds: f.kinds, Offline: f.offline})
	if err != nil && ctx.Err() == nil {
		err = &usageError{err}
	}
	if !f.json {
		printReports(w, r.Sources)
	}
	return r, cfg, err
}

// printReports prints which sources answered from the cache, in part, or not at all.
func printReports(w Environment, all []catalog.Report) {
	for _, s := range all {
		about := ""
		switch {
		case s.Offline && !s.At.IsZero():
			about = "offline: the listing is of " + s.At.Local().Format("2006-01-02 15:04") + ", " +
				time.Since(s.At).Round(time.Minute).String() + " ago"
			if s.Error != "" {
				about += " (" + s.Error + ")"
			}
		case s.Error != "":
			about = s.Error
		case s.Note != "":
			about = s.Note
		default:
			continue
		}
		fmt.Fprintf(w.Err, "[gatehouse] %s %s: %s\n", s.Kind, printable(s.From), printable(about))
	}
}

func packageSearch(w Environment) *cobra.Command {
	var f searchFlags
	c := &cobra.Command{
		Use:   "search WORD...",
		Short: "Search for MCP servers to install",
		Long: `Search for MCP servers to install: in registries of the Model Context Protocol, in
Docker's catalogue files and folders of server.json that the settings name, in npm
and Rust's crates, and by exact name in PyPI. The listing of a registry is kept on disk
for a day; without a network the search answers from there and says how old it is.`,
		Example: `  gatehouse search filesystem
  gatehouse search "issue tracker" --source registry -n 5
  gatehouse search memory --offline --json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s wants a word to search for", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			r, _, err := f.search(c.Context(), w, strings.Join(args, " "))
			switch {
			case err != nil:
				return err
			case f.json:
				return showJSON(w.Out, r)
			case len(r.Entries) == 0:
				fmt.Fprintln(w.Err, "[gatehouse] Nothing was found")
				return nil
			}
			return printEntryTable(w, r.Entries)
		},
	}
	f.registerFlags(c.Flags())
	return c
}

func printEntryTable(w Environment, all []catalog.Entry) error {
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "#\tNAME\tVERSION\tSOURCE\tDOWNLOADS\tDESCRIPTION")
	for i, e := range all {
		downloads := "-"
		if e.Downloads > 0 {
			downloads = strconv.FormatInt(e.Downloads, 10)
		}
		name := e.Name
		if e.Status != "" && e.Status != "active" {
			name += " (" + e.Status + ")"
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\n",
			i+1, printable(name), orDash(shorten(e.Version)), e.Kind, downloads, printable(shorten(e.Description)))
	}
	return t.Flush()
}

func packagePick(w Environment) *cobra.Command {
	var f searchFlags
	var first, again, list bool
	var take int
	var forget string
	c := &cobra.Command{
		Use:   "pick WORD...",
		Short: "Choose one of several MCP servers for a word",
		Long: `Choose one of the MCP servers that a search finds for a word. The choice is
remembered: gatehouse package add NAME search:WORD installs it. If there are several
hits, the command asks at a terminal; -f takes the first.`,
		Example: `  gatehouse pick memory
  gatehouse pick memory -f
  gatehouse pick --list
  gatehouse pick --forget memory`,
		Args: func(c *cobra.Command, args []string) error {
			if (len(args) == 0) != (list || forget != "") {
				return usagef("%s wants a word, --list or --forget WORD", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			_, cfg, err := openCatalog(w)
			if err != nil {
				return err
			}
			picks := catalog.In(cfg.Folders.Config)
			switch {
			case list:
				return listPicks(w, picks, f.json)
			case forget != "":
				was, err := picks.Forget(forget)
				if err == nil && !was {
					err = fmt.Errorf("there is no choice for %q; gatehouse pick --list shows them", forget)
				}
				if err == nil {
					fmt.Fprintf(w.Err, "[gatehouse] Forgot the choice for %s\n", forget)
				}
				return err
			}
			e, err := f.choose(c.Context(), w, strings.Join(args, " "), chosenBy{first, take, again})
			if err != nil {
				return err
			}
			if f.json {
				return showJSON(w.Out, e)
			}
			p, _ := e.Installable(nil)
			for _, line := range e.Facts(p, time.Now()) {
				fmt.Fprintln(w.Out, printable(line))
			}
			return nil
		},
	}
	f.registerFlags(c.Flags())
	c.Flags().BoolVarP(&first, "first", "f", false, "take the first hit")
	c.Flags().IntVar(&take, "take", 0, "take the hit with this `number`")
	c.Flags().BoolVar(&again, "again", false, "choose again, although a choice is remembered")
	c.Flags().BoolVar(&list, "list", false, "list the remembered choices")
	c.Flags().StringVar(&forget, "forget", "", "forget the choice for a `word`")
	return c
}

func listPicks(w Environment, picks catalog.Picks, asJSON bool) error {
	all, err := picks.List()
	switch {
	case err != nil:
		return err
	case asJSON:
		return showJSON(w.Out, map[string]any{"picks": orEmpty(all)})
	case len(all) == 0:
		fmt.Fprintln(w.Err, "[gatehouse] There are no choices")
		return nil
	}
	t := tabwriter.NewWriter(w.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORD\tSOURCE\tNAME\tCHOSEN")
	for _, p := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", printable(p.Word), p.Kind, printable(p.Name),
			p.At.Local().Format("2006-01-02 15:04"))
	}
	return t.Flush()
}

// chosenBy says how one of several hits is chosen.
type chosenBy struct {
	first bool
	take  int  // its number; 0 means none is named
	again bool // a remembered choice does not count
}

// choose returns the entry for a word: the remembered choice, the only hit, or the one
// that the user chooses, which is then remembered. It never guesses.
func (f *searchFlags) choose(
	ctx context.Context, w Environment, word string, by chosenBy,
) (e catalog.Entry, err error) {
	c, cfg, err := openCatalog(w)
	if err != nil {
		return e, err
	}
	picks := catalog.In(cfg.Folders.Config)
	kept, known, err := picks.Find(word)
	if err != nil {
		return e, err
	}
	r, _, err := f.search(ctx, w, word)
	if err != nil {
		return e, err
	}
	if known && !by.again && !by.first && by.take == 0 {
		for _, e := range r.Entries {
			if e.Kind == kept.Kind && e.Name == kept.Name {
				return c.Describe(ctx, e), nil
			}
		}
		fmt.Fprintf(w.Err, "[gatehouse] The choice for %s, %s of %s, is not found any more\n",
			printable(word), printable(kept.Name), kept.Kind)
	}
	i, err := by.index(w, word, r.Entries)
	if err != nil {
		return e, err
	}
	e = r.Entries[i]
	if err := picks.Remember(word, e, time.Now()); err != nil {
		return e, err
	}
	return c.Describe(ctx, e), nil
}

// index chooses one of several hits.
func (by chosenBy) index(w Environment, word string, all []catalog.Entry) (int, error) {
	switch {
	case len(all) == 0:
		return 0, fmt.Errorf("nothing was found for %q", word)
	case by.first || len(all) == 1:
		return 0, nil
	case by.take > len(all) || by.take < 0:
		return 0, usagef("--take %d: there are %d hits", by.take, len(all))
	case by.take > 0:
		return by.take - 1, nil
	}
	toErr := w
	toErr.Out = w.Err
	if err := printEntryTable(toErr, all); err != nil {
		return 0, err
	}
	if !isTerminal(w.In) {
		return 0, usagef("there are %d hits for %q: choose one with --take NUMBER, or the first with -f", len(all),
			word)
	}
	lines := bufio.NewReader(w.In)
	for range 3 {
		fmt.Fprintf(w.Err, "Which one? [1-%d] ", len(all))
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		if n, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && n >= 1 && n <= len(all) {
			return n - 1, nil
		}
	}
	return 0, fmt.Errorf("none was chosen")
}

// searchTarget is how a target begins that is searched for.
const searchTarget = "search:"

// found makes the package of a target that is searched for, after asking for what it
// needs.
func (f *addFlags) found(
	ctx context.Context, w Environment, id, target string, words []string, env map[string]string,
) (packages.Wish, error) {
	s := searchFlags{limit: 20, json: f.json}
	e, err := s.choose(ctx, w, strings.TrimPrefix(target, searchTarget), chosenBy{first: f.first, take: f.take})
	if err != nil {
		return packages.Wish{}, err
	}
	return f.fromEntry(w, id, e, words, env)
}

// fromEntry makes the package of an entry of a registry or a server.json.
func (f *addFlags) fromEntry(
	w Environment, id string, e catalog.Entry, words []string, env map[string]string,
) (packages.Wish, error) {
	p, err := e.Installable(nil)
	if err != nil && len(e.Remotes) == 0 {
		return packages.Wish{}, err
	}
	sets, err := parseSets(f.sets)
	if err != nil {
		return packages.Wish{}, err
	}
	for _, line := range e.Facts(p, time.Now()) {
		fmt.Fprintf(w.Err, "[gatehouse] %s\n", printable(line))
	}
	wish, err := e.Wish(id, p, f.catalogAnswer(w, env, sets))
	if err != nil {
		return wish, fmt.Errorf("%w; give it with --set, --env or --secret", err)
	}
	wish.Args = append(wish.Args, words...)
	plain, secrets := packages.SplitSecrets(id, env)
	for name, value := range plain {
		if wish.Env == nil {
			wish.Env = map[string]string{}
		}
		wish.Env[name] = value
	}
	for name, value := range secrets {
		if wish.Secrets == nil {
			wish.Secrets = map[string]secret.Text{}
		}
		wish.Secrets[name] = value
	}
	return wish, nil
}

// catalogAnswer answers what a package asks for: by the flags, or else by the user at the
// terminal. Inputs that are not required are left out.
func (f *addFlags) catalogAnswer(w Environment, env map[string]string, sets map[string][]string) catalog.Answer {
	given := map[string]bool{}
	for _, one := range f.secrets {
		name, _, _ := strings.Cut(one, "=")
		given[name] = true
	}
	return func(in catalog.Input) (plain []string, sealed secret.Text, ok bool, err error) {
		if value, there := env[in.Name]; in.Name != "" && there {
			if in.Secret {
				return nil, secret.New(value), true, nil
			}
			return []string{value}, sealed, true, nil
		}
		if in.Name != "" && given[in.Name] {
			return []string{""}, sealed, true, nil // --secret adds it
		}
		if values, there := sets[in.Label()]; there {
			if in.Secret {
				return nil, secret.New(strings.Join(values, ",")), true, nil
			}
			return values, sealed, true, nil
		}
		if !in.Required || in.Default != "" || !isTerminal(w.In) {
			return nil, sealed, false, nil
		}
		about := cmp.Or(in.Description, "required")
		if len(in.Choices) > 0 {
			about += " (" + strings.Join(in.Choices, ", ") + ")"
		}
		fmt.Fprintf(w.Err, "[gatehouse] %s: %s\n", printable(in.Label()), printable(about))
		value, err := enterValue(w, in.Label(), in.Secret, in.Path)
		if in.Secret {
			return nil, secret.New(value), err == nil, err
		}
		return []string{value}, sealed, err == nil && value != "", err
	}
}

// describeNPM prints what npm's registry says of a package, before the question
// whether to install it.
func describeNPM(ctx context.Context, w Environment, name string) {
	c, _, err := openCatalog(w)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, describeTime)
	defer cancel()
	e, err := c.FromNPM(ctx, name)
	if err != nil {
		fmt.Fprintf(w.Err, "[gatehouse] npm says nothing about %s: %s\n", printable(name), printable(err.Error()))
		return
	}
	for _, line := range e.Facts(&e.Packages[0], time.Now()) {
		fmt.Fprintf(w.Err, "[gatehouse] %s\n", printable(line))
	}
}

// describeTime is how long npm's registry may take to describe a package.
const describeTime = 15 * time.Second
